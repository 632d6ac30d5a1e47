"""Checkpointing and offloading change memory, never numbers."""

import pytest
import torch
from torch.utils.checkpoint import noop_context_fn

from helpers.engine.memory.recomputing import Group
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.count_blocks import kept_bytes
from tests.support.matrix import product
from tests.support.ranks import mesh_of, pool

POLICIES = {
    "full": {"activation": "full"},
    "group_2": {"activation": "group_2"},
    "selective": {"activation": "selective"},
    "offload": {"offload": True},
    "full-offload": {"activation": "full", "offload": True},
}
LAYOUTS = {
    "one": {},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "zero2": {"dp_shard": 2, "zero_stage": 2},
    "zero3": {"dp_shard": 2},
    "tp2-hsdp": {"tp": 2, "dp_replicate": 2, "dp_shard": 2},
}


def check_all(family: str, plans: list[ParallelPlan]) -> None:
    for plan in plans:
        parity.check(family, plan, steps=2)


FAMILIES = (*tiny.FAMILIES, "gemma3", "bloom", "bert-mlm")


@pytest.mark.parametrize(("family", "layout"), product(FAMILIES, LAYOUTS))
def test_every_policy_equals_one_process(family: str, layout: str) -> None:
    plans = [ParallelPlan(**LAYOUTS[layout], **policy) for policy in POLICIES.values()]
    pool(plans[0].world_size).run(check_all, family, plans)


def saved_bytes(plan: ParallelPlan) -> int:
    """Bytes that the forward pass keeps for the backward pass, each storage once."""
    model = parallelize(tiny.fresh("gpt2", torch.float32), plan, mesh_of(plan))
    model.train()
    ids, labels = tiny.batch(0, rows=8, length=64)
    with kept_bytes(model) as kept:
        model(ids, labels=labels)
    return sum(kept.values())


def test_checkpointing_keeps_less() -> None:
    kept = {
        name: pool(1).run(saved_bytes, ParallelPlan(activation=name))[0]
        for name in ("none", "full", "group_2")
    }
    assert kept["full"] < 0.5 * kept["none"]
    assert kept["group_2"] < kept["full"]


def count_recomputed(activation: str) -> dict[str, int]:
    """How often each kind of operation runs in a forward and backward pass."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: dict[str, int] = {}

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts[func._schema.name] = counts.get(func._schema.name, 0) + 1
            return func(*args, **(kwargs or {}))

    plan = ParallelPlan(activation=activation)
    model = parallelize(tiny.fresh("gpt2", torch.float32), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
    with Count():
        trainer.backward(*tiny.batch(0))
    return counts


def test_what_comes_out_inside_a_group_is_no_number() -> None:
    """It is not computed yet: a class that uses it had what came into the group."""
    blocks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    hidden = torch.ones(3, 2)
    expected = blocks[1](blocks[0](hidden))
    Group(blocks, noop_context_fn)
    inside = blocks[0](hidden)
    assert inside.shape == hidden.shape and inside.isnan().all()
    assert torch.equal(blocks[1](inside), expected)


def test_selective_repeats_no_matrix_product() -> None:
    none, selective, full = (
        pool(1).run(count_recomputed, name)[0] for name in ("none", "selective", "full")
    )
    products = ("aten::addmm", "aten::mm", "aten::bmm")
    total = {id(c): sum(c.get(p, 0) for p in products) for c in (none, selective, full)}
    assert total[id(selective)] == total[id(none)] < total[id(full)]
    assert selective["aten::native_layer_norm"] > none["aten::native_layer_norm"]


def offloaded(family: str) -> int:
    """Tensors that the offloader takes in one step."""
    from helpers.engine.memory import offloading as offload

    taken = []
    send = offload.Offloader._send
    offload.Offloader._send = lambda self, tensor: taken.append(tensor.shape) or send(self, tensor)
    try:
        plan = ParallelPlan(offload=True)
        model = parallelize(tiny.fresh(family, torch.float32), plan, mesh_of(plan))
        Trainer(model, plan, mesh_of(plan), lr=1e-3).step(*tiny.batch(0))
    finally:
        offload.Offloader._send = send
    return len(taken)


def test_offloading_really_moves_tensors() -> None:
    assert pool(1).run(offloaded, "gpt2")[0] > 10
