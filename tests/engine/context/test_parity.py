"""Every way to split sequences equals one process, with every other axis and kind of batch."""

from dataclasses import replace

import pytest
import torch

from helpers.engine.plan import ParallelPlan
from tests.engine.context import rows
from tests.support import parity, tiny
from tests.support.matrix import product
from tests.support.ranks import pool

FAMILIES = ("gptj", "gpt2", "neox", "falcon-mqa", "falcon-new", "falcon-alibi", "llama", "qwen2")
WAYS = ("ring", "gather", "ulysses")
BESIDE = {
    "alone": {},
    "cp4": {"cp": 4},
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2, "microbatches": 2},
    "zero3": {"dp_shard": 2},
    "hsdp": {"dp_replicate": 2},
}
MORE = {
    "contiguous": {"cp": 4, "cp_split": "contiguous"},
    "zero1": {"dp_shard": 2, "zero_stage": 1},
    "zero2": {"zero_stage": 2, "microbatches": 2},
    "interleaved": {"pp": 2, "schedule": "interleaved", "microbatches": 2, "layers": 4},
    "zero-bubble": {"pp": 2, "schedule": "zero-bubble", "microbatches": 3},
    "full": {"activation": "full"},
    "group": {"activation": "group_2"},
    "selective": {"activation": "selective"},
    "offload": {"offload": True, "activation": "full"},
    "accumulated": {"microbatches": 3},
}


def plan_of(way: str, fields: dict) -> ParallelPlan:
    fields = {name: value for name, value in fields.items() if name != "layers"}
    return ParallelPlan(**{"cp": 2, "cp_attention": way, **fields})


@pytest.mark.parametrize(
    ("family", "way", "beside", "kind"),
    product(FAMILIES, WAYS, BESIDE, [kind for kind in rows.KINDS if kind != "packed"]),
)
def test_rows(family: str, way: str, beside: str, kind: str) -> None:
    plan = plan_of(way, BESIDE[beside])
    pool(plan.world_size).run(rows.check, family, plan, kind)


@pytest.mark.parametrize(
    ("family", "way", "beside"),
    product([name for name in FAMILIES if name != "falcon-alibi"], WAYS, BESIDE),
)
def test_packed_rows(family: str, way: str, beside: str) -> None:
    plan = plan_of(way, BESIDE[beside])
    pool(plan.world_size).run(rows.check, family, plan, "packed")


@pytest.mark.parametrize(
    ("family", "way", "beside"), product(tiny.DECODERS, WAYS, ("alone", "tp2", "pp2"))
)
def test_more_families(family: str, way: str, beside: str) -> None:
    """Windows in some layers, softcaps, ALiBi, norms of heads, and scores that are not scaled."""
    plan, kind = plan_of(way, BESIDE[beside]), "uneven" if family == "bloom" else "packed"
    pool(plan.world_size).run(rows.check, family, plan, kind)


@pytest.mark.parametrize(("way", "beside"), product(WAYS, BESIDE))
def test_in_float32(way: str, beside: str) -> None:
    plan = plan_of(way, BESIDE[beside])
    pool(plan.world_size).run(rows.check, "llama", plan, "uneven", torch.float32)


@pytest.mark.parametrize(("more", "way"), product(MORE, WAYS))
def test_ten_steps(more: str, way: str) -> None:
    plan, layers = plan_of(way, MORE[more]), MORE[more].get("layers", 2)
    pool(plan.world_size).run(parity.check, "gptj", plan, torch.float64, 10, layers)


@pytest.mark.parametrize("way", WAYS)
def test_eight_ranks(way: str) -> None:
    plan = plan_of(way, {"cp": 2, "tp": 2, "pp": 2, "microbatches": 2})
    pool(8).run(rows.check, "gpt2", replace(plan, sequence_parallel=True), "uneven")
