"""2d: a model in two stages on two ranks, in the order 1F1B."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.engine.pipeline.schedules import make_schedule
from helpers.lab.exercises.on_ranks.judge import EMPTY, near, random

RANKS, MICROBATCHES, ROWS, WIDTH = 2, 4, 3, 5
SHAPE = (ROWS, WIDTH)  # of what one stage hands to the next


class Stage(nn.Module):
    """One matrix; the last stage returns the loss of its micro-batch."""

    def __init__(self, rank: int, seen: list[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(random(WIDTH, WIDTH, seed=rank + 1))
        self.rank, self.seen = rank, seen

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        self.seen.append("F")
        y = torch.tanh(x @ self.weight)
        if y.requires_grad:
            y.register_hook(lambda _: self.seen.append("B"))
        return y if target is None else (y - target).square().mean()


def exam(answer: Callable[..., Any]) -> str:
    """2d: run_stage(stage, batches, rank, shape) of four micro-batches, against both stages in one
    process."""
    rank, seen = dist.get_rank(), []
    stage = Stage(rank, seen)
    inputs = [random(*SHAPE, seed=10 + number) for number in range(MICROBATCHES)]
    targets = [random(*SHAPE, seed=20 + number) for number in range(MICROBATCHES)]
    loss = answer(stage, targets if rank else inputs, rank, SHAPE)
    if not seen and loss is None:
        return EMPTY
    both = [Stage(one, []) for one in range(RANKS)]
    losses = [both[1](both[0](x), y) for x, y in zip(inputs, targets)]
    wanted = torch.stack(losses).mean()
    wanted.backward()
    words = _of_gradient(stage.weight.grad, both[rank].weight.grad, rank)
    if words or (words := _of_order(seen, rank)):
        return words
    if rank == RANKS - 1:
        return _of_loss(loss, wanted.detach())
    return ""


def _of_gradient(found: Tensor | None, wanted: Tensor, rank: int) -> str:
    if found is None:
        more = "" if rank else ": receive the gradient of what was sent, and call .backward with it"
        return f"the stage's weight has no gradient{more}"
    if near(found, wanted):
        return ""
    if near(found, MICROBATCHES * wanted):
        return (
            f"the gradient is {MICROBATCHES} times too large: the loss is a mean of {MICROBATCHES}"
        )
    return "the gradient is not that of one process: whose gradient goes to which micro-batch?"


def _of_order(seen: list[str], rank: int) -> str:
    held = most = 0
    for kind in seen:
        held += 1 if kind == "F" else -1
        most = max(most, held)
    wanted = RANKS - rank
    if most > wanted:
        return f"{most} micro-batches were held at once, as by GPipe, and {wanted} will do"
    if most < wanted:
        return (
            "one micro-batch was held at a time: the other rank waits meanwhile; a second forward "
            "goes before the first backward"
        )
    in_turn = [action.kind for action in make_schedule("1f1b", RANKS, MICROBATCHES).ranks[rank]]
    if seen != in_turn:
        return f"the order {' '.join(seen)} is not 1F1B's, where backward and forward take turns"
    return ""


def _of_loss(loss: Any, wanted: Tensor) -> str:
    if loss is None:
        return "the last rank returns the mean loss, and nothing was returned"
    loss = torch.as_tensor(loss, dtype=torch.float64)
    if near(loss, wanted):
        return ""
    if near(loss, MICROBATCHES * wanted):
        return "the gradients are right, but the loss is a sum; the mean is wanted"
    return "the gradients are right, but the loss is not the mean of the micro-batches'"
