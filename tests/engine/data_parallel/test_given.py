"""A parameter without a gradient does not decay, one with a gradient on a single rank does."""

import pytest
import torch
import torch.distributed as dist

from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

USED_ONCE, UNUSED = "transformer.h.0.mlp", "transformer.h.1.mlp"


def trained(plan: ParallelPlan) -> dict[str, torch.Tensor]:
    """Weights after two steps, where no rank uses one MLP, and one rank alone another."""
    mesh = mesh_of(plan)
    model = parallelize(tiny.fresh("gptj", torch.float64), plan, mesh)
    skipped = [UNUSED] if dist.get_rank() == 0 else [UNUSED, USED_ONCE]
    for path in skipped:
        model.get_submodule(path).forward = torch.zeros_like
    trainer = Trainer(model, plan, mesh, lr=0.1, weight_decay=0.5)
    for step in range(2):
        trainer.step(*tiny.batch(step))
    trainer.settle()
    return {name: tensor.clone() for name, tensor in whole_weights(model)}


@pytest.mark.parametrize(
    "layout",
    [
        {"dp_replicate": 2},
        {"dp_shard": 2, "zero_stage": 1},
        {"dp_shard": 2, "zero_stage": 2, "microbatches": 2},
        {"dp_shard": 2},
        {"dp_shard": 2, "activation": "full"},
        {"dp_replicate": 2, "precision": "bf16"},
    ],
    ids=str,
)
def test_what_no_rank_uses_stays_as_it_is(layout: dict) -> None:
    before = dict(tiny.fresh("gptj", torch.float64).named_parameters())
    first, second = pool(2).run(trained, ParallelPlan(**layout))
    low = "precision" in layout
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
        expected = before[name].bfloat16() if low else before[name]
        assert torch.equal(weight.to(expected.dtype), expected) == name.startswith(UNUSED), name
