"""HSDP sums shards over the replicas once a step, beside the backward, and loses nothing."""

from unittest.mock import patch

import pytest
import torch

from helpers.engine.data_parallel import hsdp
from helpers.engine.messages.carriers import all_reduce
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool

HSDP = {"dp_replicate": 2, "dp_shard": 2}
PLANS = {
    "one": {},
    "micro-batches": {"microbatches": 3},
    "groups": {"activation": "group_2", "microbatches": 2},
    "1f1b": {"pp": 2, "microbatches": 4},
    "interleaved": {"pp": 2, "microbatches": 4, "schedule": "interleaved"},
    "zero-bubble": {"pp": 2, "microbatches": 4, "schedule": "zero-bubble"},
    "v": {"pp": 2, "microbatches": 4, "schedule": "zero-bubble-v"},
}


# a head of its own, and a tied one
@pytest.mark.parametrize(("family", "name"), each(("gptj", "gpt2"), PLANS))
def test_it_equals_one_process(family: str, name: str) -> None:
    plan = ParallelPlan(**HSDP, **PLANS[name])
    pool(plan.world_size).run(parity.check, family, plan, torch.float64, 3, 4)


def sums(plan: ParallelPlan, dtype: torch.dtype) -> tuple[int, int]:
    """All-reduces over the replicas in one step, and how many of them began inside a backward and
    nobody waited for at once."""
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(tiny.fresh("gptj", dtype, 4), plan, mesh), plan, mesh, lr=1e-3)
    found = []

    def count(tensor, group, async_op=False):
        assert group is mesh.get_group("dp_replicate")
        found.append(async_op and torch._C._current_graph_task_id() != -1)
        return all_reduce(tensor, group, async_op=async_op)

    with patch.object(hsdp, "all_reduce", count):
        trainer.backward(*tiny.batch(0))
    return len(found), sum(found)


@pytest.mark.parametrize("microbatches", (1, 4))
def test_a_step_sends_one_message_a_unit(microbatches: int) -> None:
    """Four blocks, and what is left."""
    plan = ParallelPlan(**HSDP, microbatches=microbatches)
    assert pool(4).run(sums, plan, torch.float64)[0] == (5, 5)


def test_gradients_kept_in_another_dtype_are_summed_at_once() -> None:
    """They are copies of what was summed, so a later sum would miss them."""
    plan = ParallelPlan(**HSDP, microbatches=2, precision="bf16", reduce_dtype="bf16")
    assert pool(4).run(sums, plan, torch.float32)[0] == (10, 0)
