"""1d and 1e: the operators f and g, and a column and a row layer on two ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from helpers.engine.tensor.collectives import copy_in, reduce_out
from helpers.lab.exercises.on_ranks.judge import EMPTY, near, random, wrong_kind

RANKS = 2
TOKENS, WIDTH, MIDDLE = 5, 6, 8


def exam_f_and_g(answer: Any) -> str:
    """1d: the pair (f, g), with x through f, a column layer, tanh, a row layer and g."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return "a pair is wanted, (f, g)"
    if not all(map(callable, answer)):
        return "f and g are functions; of a torch.autograd.Function F, hand over F.apply"
    f, g = answer
    rank, part = dist.get_rank(), MIDDLE // RANKS
    mine = slice(rank * part, (rank + 1) * part)
    x, a, b = random(TOKENS, WIDTH), random(WIDTH, MIDDLE, seed=1), random(MIDDLE, WIDTH, seed=2)
    whole = [tensor.clone().requires_grad_() for tensor in (x, a, b)]
    own = [tensor.clone().requires_grad_() for tensor in (x, a[:, mine], b[mine])]
    partial = torch.tanh(own[0] @ own[1]) @ own[2]
    wanted = torch.tanh(whole[0] @ whole[1]) @ whole[2]
    partial_of_x = torch.autograd.grad((partial * x).sum(), own[0])[0]
    (wanted * x).sum().backward()
    y = g(torch.tanh(f(own[0]) @ own[1]) @ own[2])
    if words := wrong_kind(y, wanted):
        return "g returned nothing" if words == EMPTY else f"of what g returned, {words}"
    if not near(y, wanted):
        return _of_y(y, partial.detach(), wanted.detach())
    if not y.requires_grad:
        return "y is right but has no gradient: write torch.autograd.Functions"
    (y * x).sum().backward()
    return _of_gradients(own, whole, partial_of_x, mine)


def _of_y(y: Tensor, partial: Tensor, wanted: Tensor) -> str:
    if near(y, partial):
        return "y is this rank's partial sum: forward, g adds the ranks' parts"
    if near(y, wanted / RANKS):
        return "y is a mean: g adds, and divides by nothing"
    return "y is not that of the whole layer: forward, f does nothing and g adds"


def _of_gradients(own: list[Tensor], whole: list[Tensor], partial: Tensor, mine: slice) -> str:
    x, a, b = (tensor.grad for tensor in own)
    if near(b, RANKS * whole[2].grad[mine]):
        return (
            f"the gradients are {RANKS} times too large: backward, g does nothing, for each rank "
            "has the gradient of y already"
        )
    if not near(a, whole[1].grad[:, mine]) or not near(b, whole[2].grad[mine]):
        return "y is right but the gradients of a and b are not: backward, g passes on what it gets"
    if near(x, partial):
        return (
            "all is right but the gradient of x, which is this rank's part alone: "
            "backward, f adds the ranks' parts"
        )
    return "" if near(x, whole[0].grad) else "the gradient of x is not that of the whole layer"


def _enter(x: Tensor) -> Tensor:
    return copy_in(x, dist.group.WORLD)


def _leave(x: Tensor) -> Tensor:
    return reduce_out(x, dist.group.WORLD)


NAMES = ("x", "w1", "b1", "w2", "b2")


def exam_layers(answer: Callable[..., Any]) -> str:
    """1e: split_mlp(x, w1, b1, w2, b2, f, g, rank, ranks) against the whole one, its gradients, and
    how much it multiplied."""
    rank = dist.get_rank()
    shapes = ((TOKENS, WIDTH), (WIDTH, MIDDLE), (MIDDLE,), (MIDDLE, WIDTH), (WIDTH,))
    given = [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    own = [tensor.clone().requires_grad_() for tensor in given]
    whole = [tensor.clone().requires_grad_() for tensor in given]
    wanted = _mlp(*whole)
    with FlopCounterMode(display=False) as counter:
        y = answer(*own, _enter, _leave, rank, RANKS)
    if words := wrong_kind(y, wanted):
        return words
    if not near(y, wanted):
        return _of_split_y(y, wanted, whole)
    multiplied, enough = counter.get_total_flops(), 4 * TOKENS * WIDTH * MIDDLE // RANKS
    if multiplied > enough:
        return f"the answer is right, but it took {multiplied} FLOPs where {enough} are enough"
    (wanted * given[0]).sum().backward()
    (y * given[0]).sum().backward()
    return _of_split_gradients(own, whole, rank)


def _mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return torch.tanh(x @ w1 + b1) @ w2 + b2


def _of_split_y(y: Tensor, wanted: Tensor, whole: list[Tensor]) -> str:
    bias = whole[4]
    if near(y, wanted + (RANKS - 1) * bias):
        return f"b2 is in the answer {RANKS} times: add it once, behind g"
    if near(y, wanted - bias):
        return "b2 is missing"
    sums = [torch.zeros_like(y) for _ in range(RANKS)]
    dist.all_gather(sums, y.detach().contiguous())
    if near(sum(sums), wanted + (RANKS - 1) * bias) or near(sum(sums), wanted):
        return "this is one rank's part alone: g adds the parts"
    return "the answer is not that of the whole: w1 and b1 are cut by columns, w2 by the same rows"


def _of_split_gradients(own: list[Tensor], whole: list[Tensor], rank: int) -> str:
    part = MIDDLE // RANKS
    mine = slice(rank * part, (rank + 1) * part)
    for name, mine_of, all_of in zip(NAMES, own, whole):
        if mine_of.grad is None:
            return f"{name} has no gradient"
        got, right = mine_of.grad, all_of.grad
        if name in ("w1", "b1"):
            got, right = got[..., mine], right[..., mine]
        if name == "w2":
            got, right = got[mine], right[mine]
        if near(got, right):
            continue
        if name == "x":
            return "the answer is right, but the gradient of x is one rank's part: x enters by f"
        return f"the answer is right, but the gradient of {name} is not"
    return ""
