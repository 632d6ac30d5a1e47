"""The optimizer's side of a step: groups, the true gradient norm, learning-rate schedules.

The optimizer works on each rank's parts as plain tensors. AdamW is element by element, so the parts
of a sharded parameter need nothing from each other; the norm is the one quantity that does.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..data_parallel.owned_shards import OwnedShard as Part
from ..errors import UserError, is_finite_number, is_number, need
from ..messages.carriers import all_reduce

OPTIMIZERS = ("adamw", "adamw8bit")
ROW, LARGE = 256, 2**16  # numbers whose squares are summed in float32, and of a tensor with such


def check_settings(
    kind: str,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    clip: float | None,
) -> None:
    """Raise a UserError if there is no such optimizer, or it can do nothing with these."""
    if kind not in OPTIMIZERS:
        raise UserError(f"no optimizer {kind!r}; there is: {', '.join(OPTIMIZERS)}")
    if not all(is_finite_number(x) and x >= 0 for x in (lr, weight_decay)):
        raise UserError(
            f"lr {lr!r:.40} and weight_decay {weight_decay!r:.40}: give finite numbers from 0"
        )
    two = isinstance(betas, tuple | list) and len(betas) == 2
    if not two or not all(is_number(beta) and 0 <= beta < 1 for beta in betas):
        raise UserError(f"betas {betas}: give two numbers from 0 and below 1")
    for name, number in {"eps": eps, "clip": 1.0 if clip is None else clip}.items():
        if not is_finite_number(number) or number <= 0:
            raise UserError(f"{name} must be a number above 0, not {number!r:.40}")


def check_changed(lr: float, clip: float | None) -> None:
    """Raise a UserError if what was set on a trainer between steps is nothing to go on with."""
    if _finite(lr) < 0:
        raise UserError(f"trainer.lr must be a finite number from 0, not {lr!r:.40}")
    if clip is not None and _finite(clip) <= 0:
        raise UserError(f"trainer.clip must be a number above 0 or None, not {clip!r:.40}")


def _finite(value: Any) -> float:
    """What is no finite number is -1. Another library's schedule may give one of its own kind."""
    number = value.item() if getattr(value, "shape", None) == () else value
    return number if is_finite_number(number) else -1


def adamw(
    parts: Iterable[Part],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    kind: str = "adamw",
) -> torch.optim.Optimizer:
    """AdamW over the parts that this rank holds. Norms and biases do not decay.

    Args:
        kind: `adamw`, fused; or `adamw8bit`, bitsandbytes' with moments of 8 bits in parts of at
            least 4,096 numbers.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """
    held = [part for part in parts if part.tensor.numel()]
    groups = [
        {"params": [p.tensor for p in held if p.decays], "weight_decay": weight_decay},
        {"params": [p.tensor for p in held if not p.decays], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]] or groups  # all may be frozen here
    if kind == "adamw8bit":
        bnb = need("bitsandbytes", "qlora")
        return bnb.optim.AdamW8bit(groups, lr=lr, betas=betas, eps=eps)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


def gradient_norm(
    parts: Iterable[Part], gradients: dict[str, Tensor], device: torch.device
) -> Tensor:
    """The L2 norm of the whole model's gradient, a float64 scalar, the same on every rank.

    A rank adds the squares of its parts' gradients, each divided by the number of ranks that hold
    the same numbers, so one sum over the world counts every element once, whatever the axes.

    Args:
        device: the trainer's, where the norm is on a rank without any gradient, too.
    """
    by_copies: dict[int, list[Tensor]] = defaultdict(list)
    for part in parts:
        if part.name in gradients:
            by_copies[part.copies].append(gradients[part.name])
    total = torch.zeros((), dtype=torch.float64, device=device)
    for copies, held in by_copies.items():
        total += _sum_of_squares(held) / copies
    if dist.is_initialized() and dist.get_world_size() > 1:
        all_reduce(total)
    return total.sqrt()


def _sum_of_squares(tensors: list[Tensor]) -> Tensor:
    """A float64 scalar."""
    norms = [_row_norms(x) for x in tensors if _has_rows(x)]
    others = [x for x in tensors if not _has_rows(x)]
    norms += torch._foreach_norm(others, dtype=torch.float64) if others else []
    squares = torch.stack([norm.double().square().sum() for norm in norms]).sum()
    if squares.is_cpu and not 0 < squares < math.inf:  # or its squares are none of float32's
        return torch.stack(torch._foreach_norm(tensors, dtype=torch.float64)).square().sum()
    return squares


def _has_rows(x: Tensor) -> bool:
    """Is its norm quicker by rows? On a CPU one in float64 of a float32 tensor takes twenty times
    as long as float32's, of which a sum of so few terms keeps the accuracy."""
    return x.is_cpu and x.dtype == torch.float32 and x.numel() >= LARGE and x.numel() % ROW == 0


def _row_norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.reshape(-1, ROW), dim=1)


def scale_(gradients: dict[str, Tensor], norm: float, limit: float | None, scale: float) -> None:
    """Undo a loss scale, and bring the norm to the limit where it is above, as torch's own does.

    Args:
        norm: of the gradients after the loss scale is undone.
    """
    factor = 1 / scale
    if limit is not None:
        factor *= min(1.0, limit / (norm + 1e-6))
    if gradients and factor != 1.0:
        torch._foreach_mul_(list(gradients.values()), factor)


LR_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def check_lr_schedule(schedule: str, warmup: int, total: int) -> None:
    """Raise a UserError if there is no such schedule, or no steps for it to decay over."""
    if not all(type(steps) is int and steps >= 0 for steps in (warmup, total)):
        raise UserError(f"warmup {warmup} and total {total}: give whole numbers of steps from 0")
    lr_factor(0, schedule, warmup, total)
    if schedule != "constant" and total == 0:
        raise UserError(f"lr_schedule={schedule} decays to 0 at the last step: give total_steps")


def set_lr(optimizer: torch.optim.Optimizer, last: float, lr: float) -> float:
    """Give every group this learning rate, and return it.

    Raises:
        UserError: it is not the `last` one that was given: another's scheduler sets it, too.
    """
    for group in optimizer.param_groups:
        if group["lr"] != last:
            raise UserError(
                "the optimizer's learning rate was set from outside: set trainer.lr before each "
                "step, or give lr_schedule"
            )
        group["lr"] = lr
    return lr


def lr_factor(step: int, schedule: str, warmup: int, total: int) -> float:
    """What the peak learning rate is multiplied by at a step counted from 0.

    It rises linearly over `warmup` steps, then decays to 0 at `total`; `constant` does not decay.

    Raises:
        UserError: there is no such schedule.
    """
    if not isinstance(schedule, str) or schedule not in LR_SCHEDULES:
        raise UserError(f"no schedule {schedule!r}; there is: {', '.join(LR_SCHEDULES)}")
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total - warmup)
    return LR_SCHEDULES[schedule](min(1.0, done))
