"""A parameter without a gradient does not decay, one with a gradient on a single rank does."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.engine.files.checkpoints import Checkpoints, pick
from helpers.engine.files.manifest import read_manifest
from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

PLAN = ParallelPlan()
USED_ONCE, UNUSED = "transformer.h.0.mlp", "transformer.h.1.mlp"


class Silent(torch.autograd.Function):
    """Zeros that come from a weight, and give it no gradient."""

    @staticmethod
    def forward(ctx, hidden, weight):
        return torch.zeros_like(hidden)

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad), None


def trained(plan: ParallelPlan) -> list[dict[str, torch.Tensor]]:
    """Weights after two steps, where no rank uses one MLP, and one rank alone another; and after a
    third, where no rank uses that one either."""
    mesh = mesh_of(plan)
    model = parallelize(tiny.fresh("gptj", torch.float64), plan, mesh)
    if dist.get_rank() == 1:
        model.get_submodule(USED_ONCE).forward = torch.zeros_like
    unused = model.get_submodule(UNUSED)
    unused.forward = lambda hidden: Silent.apply(hidden, unused.fc_in.weight)
    trainer = Trainer(model, plan, mesh, lr=0.1, weight_decay=0.5)
    found = []
    for step in range(3):
        if step == 2:
            model.get_submodule(USED_ONCE).forward = torch.zeros_like
        trainer.step(*tiny.batch(step))
        trainer.settle()
        found.append({name: tensor.clone() for name, tensor in whole_weights(model)})
    return found[1:]


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
    (first, after), (second, _) = pool(2).run(trained, ParallelPlan(**layout))
    low = "precision" in layout
    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
        expected = before[name].bfloat16() if low else before[name]
        assert torch.equal(weight.to(expected.dtype), expected) == name.startswith(UNUSED), name
        assert torch.equal(after[name], weight) == name.startswith((UNUSED, USED_ONCE)), name


def unchanged_in_a_stage() -> set[str]:
    """This stage's parameters that two steps leave as they are, where the second has an MLP that
    does nothing."""
    plan = ParallelPlan(pp=2, dp_replicate=2)
    model = parallelize(tiny.fresh("gptj", torch.float64), plan, mesh_of(plan))
    if mesh_of(plan).get_local_rank("pp") == 1:
        model.get_submodule(UNUSED).forward = torch.zeros_like
    trainer = Trainer(model, plan, mesh_of(plan), lr=0.1, weight_decay=0.5)
    before = {part.name: part.tensor.detach().clone() for part in trainer.parts}
    for step in range(2):
        trainer.step(*tiny.batch(step))
    return {part.name for part in trainer.parts if torch.equal(part.tensor, before[part.name])}


def test_what_one_stage_does_not_use_stays_as_it_is() -> None:
    by_rank = pool(4).run(unchanged_in_a_stage)
    assert sorted(map(len, by_rank)) == [0, 0, 4, 4]
    assert all(name.startswith(UNUSED) for names in by_rank for name in names)


def used_from(step: int) -> Trainer:
    """A trainer of one process whose second MLP takes part from a step on."""
    model = parallelize(tiny.fresh("gptj", torch.float64), PLAN, mesh_of(PLAN))
    trainer = Trainer(model, PLAN, mesh_of(PLAN), lr=0.1, weight_decay=0.5)
    mlp = model.get_submodule(UNUSED)
    whole = mlp.forward
    mlp.forward = lambda hidden: (
        whole(hidden) if trainer.steps_done >= step else torch.zeros_like(hidden)
    )
    return trainer


def resumed_and_not(folder: Path) -> tuple[float, float, dict[str, int]]:
    """Losses of the sixth step, in one run and in one that a checkpoint of the fourth began."""
    trainer, checkpoints = used_from(2), Checkpoints(folder)
    for step in range(6):
        loss = trainer.step(*tiny.batch(step)).loss
        if step == 3:
            checkpoints.save(trainer)
    again = used_from(2)
    checkpoints.load(again, pick(folder))
    other = [again.step(*tiny.batch(step)).loss for step in (4, 5)][-1]
    return loss, other, read_manifest(pick(folder), {})["fewer_updates"]


def test_a_checkpoint_knows_what_was_updated_less_often(tmp_path: Path) -> None:
    [(expected, loss, fewer)] = pool(1).run(resumed_and_not, tmp_path)
    assert loss == expected
    assert set(fewer.values()) == {2}
    assert all(name.startswith(UNUSED) for name in fewer)
