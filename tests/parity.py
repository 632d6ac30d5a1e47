"""Train the reference and a layout side by side in the rank processes, and compare everything."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from helpers.engine.optimizer import clip_, gradient_norm
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests import tiny
from tests.ranks import mesh_of

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check(family: str, plan: ParallelPlan, dtype: torch.dtype) -> None:
    """Loss, every gradient, the norm, and the losses and weights of ten steps."""
    torch.set_default_dtype(torch.float32)
    truth, limit = tiny.truth(family, dtype), TOLERANCE[dtype]
    model = parallelize(tiny.fresh(family, dtype), plan, mesh_of(plan))
    trainer = Trainer(
        model, plan, mesh_of(plan), lr=tiny.LR, weight_decay=tiny.DECAY, clip=tiny.CLIP
    )
    loss = trainer.backward(*tiny.batch(0))
    close("loss", loss, truth["losses"][0], limit)
    for name, parameter in model.named_parameters():
        close(f"gradient of {name}", whole(parameter.grad), truth["gradients"][name], limit)
    norm = gradient_norm(model)
    close("gradient norm", norm, truth["norms"][0], limit)
    clip_(model, norm, tiny.CLIP)
    trainer.update()
    trainer.steps_done += 1
    for step in range(1, tiny.STEPS):
        result = trainer.step(*tiny.batch(step))
        close(f"loss of step {step}", result.loss, truth["losses"][step], limit)
        close(f"norm of step {step}", result.grad_norm, truth["norms"][step], limit)
    # Adam divides by the root of tiny second moments, which magnifies rounding early on
    for name, parameter in model.named_parameters():
        close(f"weight {name}", whole(parameter.detach()), truth["weights"][name], limit * 10)


def close(what: str, ours: Any, theirs: Any, limit: float) -> None:
    """Compare with a tolerance relative to the largest element."""
    ours = torch.as_tensor(ours, dtype=torch.float64)
    theirs = torch.as_tensor(theirs, dtype=torch.float64)
    scale = max(1.0, theirs.abs().max().item())
    worst = (ours - theirs).abs().max().item() / scale
    assert worst <= limit, f"{what}: off by {worst:.2e}, allowed {limit:.0e}"
