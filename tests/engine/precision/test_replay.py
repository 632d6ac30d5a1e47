"""A step that is taken twice: the same bits where all is sound, and a flipped bit is found."""

import contextlib
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.engine.errors import NotRepeatable
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.replay import WORDS, twice
from helpers.engine.trainer import Trainer
from tests.engine.precision.test_precision import LAYOUTS
from tests.support import tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool

MORE = {
    "full": {"activation": "full", "tp": 2},
    "selective": {"activation": "selective"},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    "interleaved": {"pp": 2, "schedule": "interleaved", "virtual_stages": 1},
}

ROOT = Path(__file__).resolve().parents[3]
RUN = "--model gpt2-tiny --layers 2 --batch-size 4 --seq-len 32 --steps 6 --replay-check 2 --watch"
SPOILED = """
import itertools
from helpers.engine.trainer import Trainer
from helpers.train import run
backward, passes = Trainer.backward, itertools.count()
def spoiled(self, ids, labels, documents=None):
    # passes 0, (1, 2), 3, (4, 5): step 4 is taken by the last two
    return backward(self, ids.roll(int(next(passes) == 5), 0), labels, documents)
Trainer.backward = spoiled
run.main(0.0)
"""


def make(plan: ParallelPlan, family: str) -> Trainer:
    model = tiny.fresh(family, torch.float32)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    model = parallelize(model, plan, mesh_of(plan), check=False)
    return Trainer(model, plan, mesh_of(plan), lr=tiny.LR)


def same_with_and_without(plan: ParallelPlan, family: str) -> None:
    plain, checked = make(plan, family), make(plan, family)
    results = []
    for trainer, replay in ((plain, False), (checked, True)):
        torch.manual_seed(7)  # both have this process's random numbers
        taken = [trainer.step(*tiny.batch(step), replay=replay) for step in range(3)]
        results.append([(one.loss, one.grad_norm) for one in taken])
    assert results[0] == results[1]
    for one, other in zip(plain.parts, checked.parts):
        assert torch.equal(one.tensor, other.tensor), one.name


@pytest.mark.parametrize(
    ("layout", "precision", "family"),
    each([*LAYOUTS, *MORE], ["fp32", "bf16", "fp16"], ["gpt2", "gptj"]),
)
def test_a_sound_step_is_the_same_twice(layout: str, precision: str, family: str) -> None:
    plan = ParallelPlan(**(LAYOUTS | MORE)[layout], precision=precision, microbatches=2)
    pool(plan.world_size).run(same_with_and_without, plan, family)


def flip(numbers: Tensor, dice: random.Random, lowest: int = 0) -> None:
    """One bit of one number, in place, from the `lowest` on."""
    words = numbers.detach().view(-1).view(WORDS[numbers.element_size()])
    words[dice.randrange(len(words))] ^= 1 << dice.randrange(lowest, 8 * numbers.element_size() - 1)


@contextmanager
def bad_gradient(trainer: Trainer, turn: int, dice: random.Random) -> Iterator[None]:
    """A bit flips in a gradient of the first (0) or second pass."""
    sums, turns = trainer.sums, itertools.count()

    def spoiled() -> dict[str, Tensor]:
        found = sums()
        if next(turns) == turn:
            flip(found[dice.choice(sorted(found))], dice)
        return found

    trainer.sums = spoiled
    try:
        yield
    finally:
        trainer.sums = sums


@contextmanager
def bad_weight(trainer: Trainer, turn: int, dice: random.Random) -> Iterator[None]:
    """A bit flips in a weight of a block between the passes; it is as it was after them."""
    weight = dice.choice([p for name, p in trainer.model.named_parameters() if ".h." in name])
    backward, turns, before = trainer.backward, itertools.count(), weight.detach().clone()

    def spoiled(*batch: Tensor) -> Tensor:
        if next(turns) == 1:
            flip(weight.data, dice)
        return backward(*batch)

    trainer.backward = spoiled
    try:
        yield
    finally:
        weight.data.copy_(before)
        trainer.backward = backward


@contextmanager
def bad_activation(trainer: Trainer, turn: int, dice: random.Random) -> Iterator[None]:
    """A bit flips in what a norm gives, of a token that later ones attend to."""
    turns = itertools.count()
    norm = dice.choice([one for one in trainer.model.modules() if isinstance(one, nn.LayerNorm)])

    def spoiled(module: nn.Module, args: object, out: Tensor) -> None:
        if next(turns) == turn:
            flip(out.detach()[0, 0], dice, lowest=8)  # rounding may lose a lower one's trace

    hook = norm.register_forward_hook(spoiled)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("bad", [bad_gradient, bad_weight, bad_activation])
def test_a_flipped_bit_is_found(bad, request) -> None:
    """In one of 1,000 places with `--exhaustive`, and by default in one of 60."""
    places = 334 if request.config.getoption("--exhaustive") else 20
    missed = pool(1).run(missed_flips, bad, places)[0]
    assert missed == []


def missed_flips(bad: Callable[..., Any], places: int) -> list[int]:
    """The places of flips that were not found; the trainer is as it was after each that was."""
    trainer, missed = make(ParallelPlan(), "gpt2"), []
    before = [part.tensor.detach().clone() for part in trainer.parts]
    for place in range(places):
        dice = random.Random(place)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(bad(trainer, dice.randrange(2), dice))
                trainer.step(*tiny.batch(0), replay=True)
            missed.append(place)
        except NotRepeatable as error:
            assert str(error).startswith(f"step {trainer.steps_done + 1}: two passes")
    if not missed:
        assert trainer.steps_done == 0
        assert all(torch.equal(part.tensor, one) for part, one in zip(trainer.parts, before))
    return missed


def test_a_run_that_does_not_repeat_ends_in_one_line(tmp_path) -> None:
    """One process, in whose second pass of step 4 an activation differs."""
    done = subprocess.run(
        [sys.executable, "-c", SPOILED, "--out", str(tmp_path / "run"), *RUN.split()],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: step 4: two passes over the same batch differ, first in ")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "not repeatable"
    assert json.loads((tmp_path / "run" / "findings.json").read_text())["watched_every"] == 10
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def batches_counted() -> int:
    model, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    twice(lambda: (model(x).sum(), {}), 1, model)
    return model.num_batches_tracked.item()


def test_a_buffer_is_changed_once() -> None:
    assert pool(1).run(batches_counted) == [1]
