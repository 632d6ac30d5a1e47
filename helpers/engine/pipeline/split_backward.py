"""Backward in halves: gradients of the inputs now, of the weights later.

A linear layer's backward is two matrix products. The next stage waits for one of them, dx = g w;
nobody waits for the other, dw = g' x. Zero-bubble schedules put the second off to when their rank
would wait. What it needs, x and g, is kept until then; everything else of the graph is freed.

Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 2.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Pending(NamedTuple):
    """A weight gradient that is still to be computed: of [tokens, in] and [tokens, out]."""

    name: str
    x: Tensor
    grad: Tensor
    transposed: bool  # is the weight held as [in, out]?
    shape: torch.Size

    def compute(self) -> Tensor:
        first, second = (self.x, self.grad) if self.transposed else (self.grad, self.x)
        return (first.t() @ second).view(self.shape)


@dataclass(eq=False)
class Later:
    """The weight gradients of a model that are put off.

    now: under which key they are put off; None while they are computed with the others.
    """

    now: Hashable | None = None
    pending: dict[Hashable, list[Any]] = field(default_factory=dict)  # of Pending, or like it

    @contextmanager
    def put_off(self, key: Hashable) -> Iterator[None]:
        """For so long, backward leaves the weight gradients under `key`."""
        self.now, self.pending[key] = key, []
        try:
            yield
        finally:
            self.now = None

    def now_or_later(self, pending: Any) -> Tensor | None:
        """The weight gradient; None where it is put off."""
        if self.now is None:
            return pending.compute()
        self.pending[self.now].append(pending)
        return None

    @torch.no_grad()
    def compute(self, key: Hashable, take: Callable[[str, Tensor], None]) -> None:
        """Compute what was put off, hand each gradient to `take` with its parameter's name, and
        free what it was computed from."""
        waiting = self.pending.pop(key)
        while waiting:
            one = waiting.pop()
            take(one.name, one.compute())


def linear(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A layer's product with its weight, [out, in] or [in, out] as Conv1D has it, whose outputs may
    lie in parts, [n, out/n, in], and a bias in the same; its weight gradient comes later where the
    layer is told to, and a layer in 8 bits has products of its own (precision/float8.py)."""
    transposed = not isinstance(layer, nn.Linear)
    bias = None if bias is None else bias.flatten()
    float8 = getattr(layer, "float8", None)
    if float8 is not None:
        return float8(layer, x, weight, bias, transposed)
    later = getattr(layer, "later", None)
    if later is not None and torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias, later, layer.weight_name, transposed)
    return F.linear(x, matrix(weight, transposed), bias)


def matrix(weight: Tensor, transposed: bool) -> Tensor:
    """The weight as [out, in]."""
    return weight.flatten(1).t() if transposed else weight.flatten(0, -2)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, weight, bias, later, name, transposed):
        ctx.later, ctx.name, ctx.transposed = later, name, transposed
        ctx.save_for_backward(x, weight)
        return F.linear(x, matrix(weight, transposed), bias)

    @staticmethod
    def backward(ctx: Any, grad):
        x, weight = ctx.saved_tensors
        of_x = grad @ matrix(weight, ctx.transposed)
        grad = grad.flatten(0, -2)
        of_bias = grad.sum(0) if ctx.needs_input_grad[2] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            x = x.detach().flatten(0, -2)  # or it would hold the graph that it came from
            pending = Pending(ctx.name, x, grad, ctx.transposed, weight.shape)
            of_weight = ctx.later.now_or_later(pending)
        return of_x, of_weight, of_bias, None, None, None
