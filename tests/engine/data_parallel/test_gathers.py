"""Parameters that are gathered beside the next forward are there when it comes to them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from helpers.engine.data_parallel import gathers
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.files.weights import whole_weights
from helpers.engine.plan import ParallelPlan
from tests.support import tiny
from tests.support.matrix import product
from tests.support.parity import trainer_of
from tests.support.ranks import pool

LAYOUTS = {
    "ZeRO-1": {"dp_shard": 2, "zero_stage": 1},
    "ZeRO-2": {"dp_shard": 2, "zero_stage": 2, "microbatches": 2},
    "bf16": {"dp_shard": 2, "zero_stage": 1, "precision": "bf16"},
    "groups": {"dp_shard": 2, "zero_stage": 1, "activation": "group_2"},
    "tp": {"dp_shard": 2, "zero_stage": 1, "tp": 2},
    "pp": {"dp_shard": 2, "zero_stage": 1, "pp": 2, "microbatches": 4},
    "zero-bubble": {"dp_shard": 2, "zero_stage": 2, "pp": 2, "schedule": "zero-bubble"},
    "HSDP": {"dp_shard": 2, "zero_stage": 1, "dp_replicate": 2},
}
STEPS = 4


def trained(family: str, plan: ParallelPlan, runs_on: bool) -> tuple[list[float], dict, int]:
    """Losses; the weights at the end; the most gathers that a step left under way."""
    with patch("helpers.engine.data_parallel.buckets.BUCKET_BYTES", 4096):  # several buckets
        trainer = trainer_of(family, plan, torch.float32, layers=4, check=False)
    trainer.runs_on = runs_on
    losses, left = [], 0
    for step in range(STEPS):
        losses.append(trainer.step(*tiny.batch(step)).loss)
        left = max(left, len(trainer.data.gathers.under_way))
    losses.append(trainer.evaluate([tiny.batch(0)])["loss"])
    trainer.step(*tiny.batch(0))
    trainer.settle()
    return losses, {name: value.clone() for name, value in whole_weights(trainer.model)}, left


def beside_is_at_once(family: str, plan: ParallelPlan) -> None:
    losses, weights, left = trained(family, plan, runs_on=False)
    assert left == 0
    with patch.object(gathers, "begin_gather", as_late_as_can_be(gathers.begin_gather)):
        late_losses, late_weights, left = trained(family, plan, runs_on=True)
    assert left > 2
    assert late_losses == losses
    assert all(torch.equal(late_weights[name], value) for name, value in weights.items())


def as_late_as_can_be(begin: Callable) -> Callable:
    """What nobody has waited for is not a number."""

    def late(chunks: list, targets: list, group: Any) -> Callable[[], None]:
        own = [chunk.clone() for chunk in chunks]
        for target in targets:
            target.fill_(float("nan"))

        def arrived() -> None:
            for chunk, kept in zip(chunks, own, strict=True):
                chunk.copy_(kept)  # it may be a place in the target
            begin(chunks, targets, group)()

        return arrived

    return late


@pytest.mark.parametrize(("family", "layout"), product(("gpt2", "llama", "falcon-mqa"), LAYOUTS))
def test_the_next_forward_waits_for_what_it_needs(family: str, layout: str) -> None:
    plan = ParallelPlan(**LAYOUTS[layout])
    pool(plan.world_size).run(beside_is_at_once, family, plan)


def without_a_blocks_wait(plan: ParallelPlan) -> float:
    with patch.object(torch.nn.Module, "register_forward_pre_hook", lambda *_, **__: None):
        trainer = trainer_of("gpt2", plan, torch.float32, check=False)
    trainer.runs_on = True
    with patch.object(gathers, "begin_gather", as_late_as_can_be(gathers.begin_gather)):
        trainer.step(*tiny.batch(0))
        return trainer.step(*tiny.batch(1)).loss


def test_a_forward_that_does_not_wait_is_seen() -> None:
    for loss in pool(2).run(without_a_blocks_wait, ParallelPlan(**LAYOUTS["ZeRO-1"])):
        assert loss != loss


def load_what_is_under_way(folder: Path) -> None:
    """A checkpoint, one step more, and the checkpoint again before that step's gathers are over."""
    plan = ParallelPlan(**LAYOUTS["ZeRO-1"])
    with patch("helpers.engine.data_parallel.buckets.BUCKET_BYTES", 4096):
        trainer = trainer_of("gpt2", plan, torch.float32, layers=4)
    expected = {name: value.clone() for name, value in whole_weights(trainer.model)}
    Checkpoints(folder).save(trainer)
    trainer.runs_on = True
    with patch.object(gathers, "begin_gather", as_late_as_can_be(gathers.begin_gather)):
        trainer.step(*tiny.batch(0))
        assert trainer.data.gathers.under_way
        Checkpoints(folder).resume(trainer)
    found = {name: value.clone() for name, value in whole_weights(trainer.model)}
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_nothing_arrives_in_a_checkpoint_that_is_read(tmp_path: Path) -> None:
    pool(2).run(load_what_is_under_way, tmp_path)
