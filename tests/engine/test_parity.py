"""Every layout of every family equals one process: loss, gradients, norm, weights after steps."""

import pytest
import torch

from helpers.engine.plan import ParallelPlan
from tests.support import parity, tiny
from tests.support.matrix import product
from tests.support.ranks import pool

LAYOUTS = {
    "one": ParallelPlan(),
    "tp2": ParallelPlan(tp=2),
    "tp4": ParallelPlan(tp=4),
    "tp2-sp": ParallelPlan(tp=2, sequence_parallel=True),
    "tp4-sp": ParallelPlan(tp=4, sequence_parallel=True),
    "ddp2": ParallelPlan(dp_replicate=2),
    "zero1": ParallelPlan(dp_shard=2, zero_stage=1),
    "zero2": ParallelPlan(dp_shard=2, zero_stage=2),
    "zero3": ParallelPlan(dp_shard=2),
    "hsdp": ParallelPlan(dp_replicate=2, dp_shard=2),
    "hsdp-zero1": ParallelPlan(dp_replicate=2, dp_shard=2, zero_stage=1),
    "tp2-zero1": ParallelPlan(tp=2, dp_shard=2, zero_stage=1),
    "tp2-zero3": ParallelPlan(tp=2, dp_shard=2),
    "tp2-ddp2": ParallelPlan(tp=2, dp_replicate=2),
    "tp2-hsdp": ParallelPlan(tp=2, dp_replicate=2, dp_shard=2),
}


FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED, *tiny.DECODERS, *tiny.ENCODERS)


@pytest.mark.parametrize(("family", "layout"), product(FAMILIES, LAYOUTS))
def test_a_layout_equals_one_process(family: str, layout: str) -> None:
    plan = LAYOUTS[layout]
    pool(plan.world_size).run(parity.check, family, plan)


@pytest.mark.parametrize(("family", "layout"), product(FAMILIES, ("one", "tp2", "tp4")))
def test_in_float32(family: str, layout: str) -> None:
    """Over fewer steps where rounding grows from step to step, as behind the norms of OLMo 2."""
    plan, steps = LAYOUTS[layout], 5 if family == "olmo2" else tiny.STEPS
    pool(plan.world_size).run(parity.check, family, plan, torch.float32, steps)
