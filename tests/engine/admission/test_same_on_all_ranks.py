"""What must be the same on every rank, and is not: one line on all of them, before a step."""

import pytest
import torch
import torch.distributed as dist

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

LAYOUTS = {
    "replicas": ParallelPlan(dp_replicate=2),
    "zero-3": ParallelPlan(dp_shard=2),
    "tp": ParallelPlan(tp=2),
    "pp": ParallelPlan(pp=2, microbatches=2),
    "cp": ParallelPlan(cp=2),
}


def said(differs: str, plan: ParallelPlan) -> str:
    """What a rank is told where this differs by rank; nothing where it trains."""
    rank = dist.get_rank()
    config = tiny.config("llama")
    if differs == "configuration":
        config.rms_norm_eps = 10.0 ** -(5 + rank)
    if differs == "order in the configuration" and rank:
        config.rope_parameters = dict(reversed(config.rope_parameters.items()))
    torch.manual_seed(rank if differs == "weights" else 0)
    model = tiny.auto_class("llama").from_config(config)
    if differs == "one weight":
        with torch.no_grad():
            model.model.norm.weight.add_(rank)
    mesh = mesh_of(plan)
    try:
        trainer = Trainer(parallelize(model, plan, mesh), plan, mesh, lr=1e-3)
        torch.manual_seed(rank if differs == "ids" else 0)
        ids = torch.randint(config.vocab_size, (4, 8))
        labels = ids.clone()
        if differs == "labels":
            labels[rank] = -100
        trainer.step(ids, labels)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("differs", "words"),
    (
        ("weights", "the ranks held different weights"),
        ("one weight", "the ranks held different weights"),
        ("configuration", "the ranks hand over different models"),
        ("ids", "different batches"),
        ("labels", "different batches"),
        ("order in the configuration", ""),
        ("nothing", ""),
    ),
)
def test_what_differs_between_ranks_is_refused_by_all(differs, words, layout):
    first, second = pool(2).run(said, differs, LAYOUTS[layout])
    assert first == second and words in first and bool(words) == bool(first)


def steps_until_refused() -> int:
    """Steps of a run whose ranks get other batches from the second step on."""
    plan = ParallelPlan(dp_replicate=2)
    mesh = mesh_of(plan)
    model = parallelize(tiny.fresh("llama", torch.float64), plan, mesh)
    trainer = Trainer(model, plan, mesh, lr=1e-3)
    trainer.step(*tiny.batch(0, rows=2))
    with pytest.raises(UserError, match="different batches"):
        for _ in range(20):
            trainer.step(*tiny.batch(dist.get_rank(), rows=2))
    return trainer.steps_done


def test_batches_that_differ_later_are_found_at_the_next_comparison() -> None:
    assert pool(2).run(steps_until_refused) == [10, 10]
