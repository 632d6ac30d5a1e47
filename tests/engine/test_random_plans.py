"""Layouts that nobody chose: random families, axes, schedules and savers equal one process."""

from random import Random

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import SCHEDULES
from helpers.engine.plan import ParallelPlan
from tests.support import parity, tiny
from tests.support.matrix import part
from tests.support.ranks import pool

FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED, *tiny.DECODERS, *tiny.ENCODERS)
# of dp_replicate, dp_shard, pp, cp and tp
FLAT = (
    *((2, 1, 1, 1, 1), (1, 2, 1, 1, 1), (1, 1, 1, 2, 1), (1, 1, 1, 1, 2), (1, 1, 1, 1, 4)),
    *((1, 2, 1, 2, 1), (1, 2, 1, 1, 2), (1, 1, 1, 2, 2), (2, 2, 1, 1, 1), (2, 1, 1, 1, 2)),
)
PIPELINES = ((1, 1, 2, 1, 1), (1, 2, 2, 1, 1), (1, 1, 2, 2, 1), (1, 1, 2, 1, 2), (1, 1, 4, 1, 1))
LAYERS, STEPS, PLANS = 4, 3, 200


def task_of(family: str) -> str | None:
    return family.rpartition("-")[2] if family in tiny.ENCODERS else None


def drawn(seed: int) -> tuple[str, ParallelPlan]:
    """A family, and a plan that fits it."""
    draw = Random(seed).choice
    schedule = draw((*[None] * 5, *SCHEDULES))
    while True:
        replicate, shard, pp, cp, tp = draw(PIPELINES if schedule else FLAT)
        choices = {
            "dp_replicate": replicate,
            "dp_shard": shard,
            "pp": pp,
            "cp": cp,
            "tp": tp,
            "zero_stage": draw((1, 2, 3)),
            "sequence_parallel": tp > 1 and draw((False, True)),
            "cp_attention": draw(("ring", "gather", "ulysses")),
            "cp_split": draw(("balanced", "contiguous")),
            "schedule": schedule or "1f1b",
            "virtual_stages": 2 if schedule == "interleaved" else 0,
            "microbatches": draw((1, 2, 4)),
            "activation": draw(("none", "selective", "full", "group_2")),
            "partition": draw(("auto", "1,3", "3,1")) if pp == 2 else "auto",
        }
        family = draw(FAMILIES)
        try:
            plan = ParallelPlan(**choices)
            plan.validate(tiny.config(family, LAYERS), task=task_of(family))
        except UserError:
            continue
        return family, plan


@pytest.mark.parametrize("seed", part(range(10), range(10, PLANS)))
def test_a_random_layout_equals_one_process(seed: int) -> None:
    family, plan = drawn(seed)
    pool(plan.world_size).run(parity.check, family, plan, torch.float64, STEPS, LAYERS)


@pytest.mark.exhaustive
def test_every_axis_and_schedule_is_drawn() -> None:
    plans = [drawn(seed)[1] for seed in range(PLANS)]
    assert {plan.schedule for plan in plans} == set(SCHEDULES)
    for axis in ("dp_replicate", "dp_shard", "pp", "cp", "tp"):
        assert sum(getattr(plan, axis) > 1 for plan in plans) > PLANS / 10
