"""The optimizer's side of a step: groups, the true gradient norm, learning-rate schedules.

The optimizer works on each rank's local parts as plain tensors. AdamW is element by element, so the
parts of a sharded parameter need nothing from each other; the norm is the one quantity that does.
"""

import math
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from helpers.engine.errors import UserError
from helpers.engine.tensor import local


def local_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Each trainable parameter's local part as a parameter of its own that shares its memory."""
    with torch.no_grad():
        return {
            name: nn.Parameter(local(parameter))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }


def adamw(
    parameters: Iterable[Tensor],
    lr: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """Fused AdamW. Matrices decay; norms and biases, which have one dim, do not.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def gradient_norm(model: nn.Module) -> Tensor:
    """The L2 norm of the whole model's gradient, a float64 scalar, the same on every rank.

    A rank adds the squares of its local gradients, each divided by the number of ranks that hold
    the same numbers, so one sum over the world counts every element once, whatever the axes.
    """
    gradients = [p for p in model.parameters() if p.grad is not None]
    if not gradients:
        raise UserError("there are no gradients: call backward first")
    norms = torch._foreach_norm([local(p.grad) for p in gradients], dtype=torch.float64)
    shares = torch.tensor([1 / copies(p) for p in gradients], dtype=torch.float64)
    squares = torch.stack(norms).square()
    total = (squares * shares.to(squares.device)).sum()
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(total)
    return total.sqrt()


def copies(parameter: Tensor) -> int:
    """How many ranks of the world hold the same part of a parameter."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if not isinstance(parameter, DTensor):
        return world
    sharded = [
        parameter.device_mesh.size(axis)
        for axis, placement in enumerate(parameter.placements)
        if placement.is_shard()
    ]
    return world // math.prod(sharded)


def clip_(model: nn.Module, norm: Tensor, limit: float) -> None:
    """Scale all gradients by limit/norm where the norm is above the limit, as torch's own does."""
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    gradients = [local(p.grad) for p in model.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, factor.to(gradients[0]))


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def lr_factor(step: int, schedule: str, warmup: int, total: int) -> float:
    """What the peak learning rate is multiplied by at a step counted from 0.

    It rises linearly over `warmup` steps, then decays to 0 at `total`; `constant` does not decay.

    Raises:
        UserError: there is no such schedule.
    """
    if schedule not in SCHEDULES:
        raise UserError(f"no schedule {schedule!r}; there is: {', '.join(SCHEDULES)}")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total - warmup)
    return SCHEDULES[schedule](min(1.0, done))
