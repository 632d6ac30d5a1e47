"""A model that somebody changed, laid out and beside itself in one process."""

from collections.abc import Callable

import torch
from torch import nn

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.ranks import mesh_of

Change = Callable[[nn.Module], object]


def made(family: str, change: Change) -> nn.Module:
    model = tiny.fresh(family, torch.float64)
    change(model)
    return model


def difference(family: str, change: Change, plan: ParallelPlan) -> str:
    """What is another under the plan than in one process with the model as it was handed over, of
    a loss and all gradients; or the refusal."""
    reference, (ids, labels) = made(family, change), tiny.batch(0)
    loss = tiny.plain_loss(reference, ids, labels)
    loss.backward()
    model = made(family, change)
    try:
        trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-2)
    except UserError as error:
        return str(error)
    # GPT-J's class casts its scores to float32
    limit = 1e-7 if family == "gptj" else 1e-9
    if not torch.isclose(trainer.backward(ids, labels), loss.detach(), rtol=limit):
        return "the loss"
    expected = {name: p.grad for name, p in reference.named_parameters()}
    gradients = trainer.gradients()
    for part in trainer.parts:
        theirs = expected[part.name]
        if (part.name in gradients) != (theirs is not None):
            return f"is there a gradient of {part.name}"
        if theirs is None:
            continue
        whole = parity.whole(part.whole(gradients[part.name])).reshape(theirs.shape)
        if not torch.allclose(whole, theirs, rtol=100 * limit, atol=limit):
            return part.name
    return ""
