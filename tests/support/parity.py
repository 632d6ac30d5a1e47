"""Train the reference and a layout side by side in the rank processes, and compare everything."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from helpers.engine.files.weights import whole_weights
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm, scale_
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def laid_out(
    family: str,
    plan: ParallelPlan,
    dtype: torch.dtype = torch.float64,
    layers: int = 2,
    check: bool = True,
) -> nn.Module:
    """A tiny model under a plan."""
    return parallelize(tiny.fresh(family, dtype, layers), plan, mesh_of(plan), check=check)


def trainer_of(
    family: str,
    plan: ParallelPlan,
    dtype: torch.dtype = torch.float64,
    layers: int = 2,
    check: bool = True,
    lr: float = tiny.LR,
    **options: Any,
) -> Trainer:
    """A trainer of a tiny model under a plan."""
    model = laid_out(family, plan, dtype, layers, check)
    return Trainer(model, plan, mesh_of(plan), lr=lr, **options)


def check(
    family: str,
    plan: ParallelPlan,
    dtype: torch.dtype = torch.float64,
    steps: int = tiny.STEPS,
    layers: int = 2,
) -> None:
    """Loss, every gradient, the norm, then the losses and norms of `steps` steps, and after all of
    tiny.STEPS every weight."""
    truth, limit = tiny.truth(family, dtype, layers), TOLERANCE[dtype]
    options = {"weight_decay": tiny.DECAY, "clip": tiny.CLIP, "eps": tiny.EPS[dtype]}
    # the small copy's check has tests of its own; what follows is that of the model itself
    trainer = trainer_of(family, plan, dtype, layers, check=False, **options)
    ids, labels, inputs = tiny.masked_batch(family, 0)
    loss = trainer.backward(ids, labels, **inputs)
    close("loss", loss, truth["losses"][0], limit)
    gradients = trainer.gradients()
    compare(trainer, "gradient", gradients, truth["gradients"], limit)
    norm = gradient_norm(trainer.parts, gradients, trainer.device).item()
    close("gradient norm", norm, truth["norms"][0], limit)
    scale_(gradients, norm, tiny.CLIP, 1.0)
    trainer.update(gradients)
    trainer.steps_done += 1
    for step in range(1, steps):
        ids, labels, inputs = tiny.masked_batch(family, step)
        result = trainer.step(ids, labels, **inputs)
        close(f"loss of step {step}", result.loss, truth["losses"][step], limit)
        close(f"norm of step {step}", result.grad_norm, truth["norms"][step], limit)
    if steps < tiny.STEPS:
        return
    weights = {part.name: part.tensor.detach() for part in trainer.parts}
    compare(trainer, "weight", weights, truth["weights"], limit)
    # what the model computes with, not the optimizer
    for name, value in whole_weights(trainer.model):
        close(f"exported {name}", value, truth["weights"][name], limit)


def compare(
    trainer: Trainer,
    what: str,
    ours: dict[str, Tensor],
    theirs: dict[str, Tensor],
    limit: float,
) -> None:
    """Every part, made whole, against the same name in the reference."""
    assert names_over_stages(trainer) == theirs.keys()
    for part in trainer.parts:
        expected = theirs[part.name]
        found = whole(part.whole(ours[part.name])).reshape(expected.shape)
        close(f"{what} of {part.name}", found, expected, limit)


def names_over_stages(trainer: Trainer) -> set[str]:
    """The names of all pipeline ranks' parts."""
    group = trainer.mesh.get_group("pp")
    names = [None] * group.size()
    dist.all_gather_object(names, {part.name for part in trainer.parts}, group=group)
    return set.union(*names)


def close(what: str, ours: Any, theirs: Any, limit: float) -> None:
    """Compare with a tolerance relative to the largest element, absolute where that is below 1."""
    ours = torch.as_tensor(ours, dtype=torch.float64)
    theirs = torch.as_tensor(theirs, dtype=torch.float64)
    scale = max(1.0, theirs.abs().max().item())
    worst = (ours - theirs).abs().max().item() / scale
    assert worst <= limit, f"{what}: off by {worst:.2e}, allowed {limit:.0e}"
