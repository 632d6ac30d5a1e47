"""What a trainer held is free when it is gone: the next model of a notebook needs the memory."""

import gc
import weakref
from unittest.mock import patch

import pytest
import torch

from helpers.engine.data_parallel import buckets
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

PLANS = {
    "one process": {},
    "bf16": {"precision": "bf16"},
    "fp8": {"precision": "fp8"},
    "recomputed": {"precision": "bf16", "activation": "full"},
    "selective": {"precision": "bf16", "activation": "selective"},
    "offloaded": {"precision": "bf16", "offload": True},
    "micro-batches": {"precision": "bf16", "microbatches": 2},
    "tp": {"tp": 2, "sequence_parallel": True},
    "cp": {"cp": 2},
    "DDP": {"dp_replicate": 2},
    "ZeRO-1": {"dp_shard": 2, "zero_stage": 1},
    "ZeRO-2": {"dp_shard": 2, "zero_stage": 2, "precision": "bf16"},
    "ZeRO-3": {"dp_shard": 2, "precision": "bf16"},
    "1f1b": {"pp": 2, "microbatches": 4},
    "zero-bubble": {"pp": 2, "microbatches": 4, "schedule": "zero-bubble"},
}


def held_after(plan: ParallelPlan) -> list[str]:
    """The names of a rank's tensors that outlive its trainer."""
    model = parallelize(tiny.fresh("gptj", torch.float32), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    for step in range(2):
        trainer.step(*tiny.batch(step, length=16))
    kept = {name: weakref.ref(p) for name, p in model.named_parameters()}
    kept |= {f"part {part.name}": weakref.ref(part.tensor) for part in trainer.parts}
    del model, trainer
    gc.collect()
    return [name for name, held in kept.items() if held() is not None]


def nothing_is_held(plan: ParallelPlan) -> None:
    assert held_after(plan) == []


@pytest.mark.parametrize("fields", PLANS.values(), ids=PLANS)
def test_a_trainer_that_is_gone_leaves_nothing_behind(fields: dict[str, object]) -> None:
    plan = ParallelPlan(**fields)
    pool(plan.world_size).run(nothing_is_held, plan)


def held_by_a_hook() -> None:
    """A hook that holds the buckets, and so the parameter that it is of."""
    with patch.object(buckets, "WeakMethod", lambda method: lambda: method):
        assert held_after(ParallelPlan(precision="bf16")) != []


def test_a_hook_that_holds_its_parameter_is_noticed() -> None:
    pool(1).run(held_by_a_hook)
