"""The two ends of a pipeline: the embedding, the head, and the matrix that they may share."""

import pytest
import torch
from torch import Tensor

from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool


def frozen_embedding(plan: ParallelPlan) -> tuple[list[float], bool]:
    """Losses of three steps with a tied embedding that does not train; has it stayed as it was?"""
    model = tiny.fresh("gpt2", torch.float64)
    model.transformer.wte.weight.requires_grad_(False)
    before = model.transformer.wte.weight.detach().clone()
    model = parallelize(model, plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    losses = [trainer.step(*tiny.batch(step)).loss for step in range(3)]
    own = [
        p for name, p in model.named_parameters() if name.endswith(("wte.weight", "lm_head.weight"))
    ]
    return losses, all(torch.equal(p, before) for p in own)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_a_tied_embedding_may_be_frozen(schedule: str) -> None:
    [(expected, _)] = pool(1).run(frozen_embedding, ParallelPlan())
    plan = ParallelPlan(pp=2, schedule=schedule, microbatches=2)
    for losses, same in pool(2).run(frozen_embedding, plan):
        assert losses == pytest.approx(expected, rel=1e-12) and same


def kept_head_gradients(plan: ParallelPlan) -> int:
    """How many tensors as large as the head the graphs of a step keep, beside the head itself."""
    model = parallelize(tiny.fresh("llama", torch.float32), plan, mesh_of(plan))
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    heads = [p for name, p in model.named_parameters() if name == "lm_head.weight"]
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += any(tensor.shape == h.shape and tensor.data_ptr() != h.data_ptr() for h in heads)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        trainer.step(*tiny.batch(0))
    return kept


def test_gpipe_keeps_no_gradient_of_the_head_for_each_micro_batch() -> None:
    """They would be as many heads in float32 as there are micro-batches."""
    plan = {"pp": 2, "microbatches": 8}
    assert pool(2).run(kept_head_gradients, ParallelPlan(schedule="gpipe", **plan)) == [0, 0]
    # one that ends each loss's backward before it begins the next one makes them in one pass
    assert pool(2).run(kept_head_gradients, ParallelPlan(schedule="1f1b", **plan)) == [0, 8]
