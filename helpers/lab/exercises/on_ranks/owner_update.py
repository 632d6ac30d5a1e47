"""5f: ZeRO-1, where each rank updates what it owns and hands it to the others."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.lab.exercises.on_ranks.judge import EMPTY, near, random

RANKS, SIZE, STEPS = 2, 12, 3
LR, BETA = 0.1, 0.9


def exam(answer: Callable[..., Any]) -> str:
    """5f: update(weights, gradient, momentum, lr, beta, rank, ranks), weights in place: three steps
    against descent with momentum on the mean gradient."""
    rank, part = dist.get_rank(), SIZE // RANKS
    mine = slice(rank * part, (rank + 1) * part)
    weights, momentum = random(SIZE), torch.zeros(part, dtype=torch.float64)
    wanted, state = weights.clone(), torch.zeros(SIZE, dtype=torch.float64)
    start = weights.clone()
    for step in range(STEPS):
        gradients = [random(SIZE, seed=10 * step + one + 1) for one in range(RANKS)]
        before, old_state = wanted.clone(), state.clone()
        state = BETA * state + torch.stack(gradients).mean(0)
        wanted = wanted - LR * state
        answer(weights, gradients[rank].clone(), momentum, LR, BETA, rank, RANKS)
        if not near(weights, wanted):
            old = _Before(before, old_state, gradients, mine)
            words = _of_weights(weights, wanted, old)
            still = step == 0 and torch.equal(weights, start) and not momentum.any()
            return EMPTY if still else f"in step {step + 1}, {words}" if step else words
        if not near(momentum, state[mine]):
            return "the weights are right, but momentum is not updated in place"
    return ""


class _Before(NamedTuple):
    """What a step began with."""

    weights: Tensor
    state: Tensor
    gradients: list[Tensor]
    mine: slice

    def stepped(self, gradient: Tensor) -> Tensor:
        return self.weights - LR * (BETA * self.state + gradient)


def _of_weights(found: Tensor, wanted: Tensor, before: _Before) -> str:
    rank, mine = dist.get_rank(), before.mine
    if near(found[mine], wanted[mine]):
        others = torch.cat([found[: mine.start], found[mine.stop :]])
        old = torch.cat([before.weights[: mine.start], before.weights[mine.stop :]])
        if near(others, old):
            return "this rank's share is right and the others' are old: hand each share to all"
        return "this rank's share is right and the others' are not: which share is whose?"
    if near(found[mine], before.stepped(before.gradients[rank])[mine]):
        return "the step was made with this rank's own gradient: all ranks' are wanted, their mean"
    if near(found[mine], before.stepped(torch.stack(before.gradients).sum(0))[mine]):
        return "the step was made with the sum of the gradients; their mean is wanted"
    if near(found[mine], before.weights[mine]):
        return "this rank's share has not moved: weights are updated in place"
    return "the weights are not those of momentum · beta + gradient, times lr, subtracted"
