"""Attention over the whole sequence, of which each rank of cp holds a part.

    ring      keys and values go round                       least memory, as many messages as ranks
    gather    keys and values are gathered                   two messages; few key heads
    ulysses   heads for tokens, an all-to-all on both sides  as many heads as ranks

All three give what one process gives; which is fastest depends on lengths, heads and links.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UserError
from . import gather, ring, ulysses
from .formula import Scores
from .kept import Kept
from .parts import Part

WAYS = {"ring": ring, "gather": gather, "ulysses": ulysses}


class AcrossRanks(torch.autograd.Function):
    """One way's forward beside its backward, which are functions of its file.

    q: [rows, heads, tokens, head_dim], k and v with as many heads or fewer, sinks: [heads] or
    None; to q's shape. way: one of the values of WAYS.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        way: ModuleType,
        part: Part,
        scores: Scores,
        group: ProcessGroup,
        kept: Kept,
    ) -> Tensor:
        ctx.way, ctx.call = way, (part, scores, group)
        found = kept.or_else(lambda: way.forward((q, k, v, sinks), part, scores, group))
        ctx.save_for_backward(q, k, v, sinks, *found[-2:])  # the result where it was made, and lse
        return found[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, lse = ctx.saved_tensors
        of_inputs = ctx.way.backward(grad, inputs, out, lse, *ctx.call)
        return *of_inputs, None, None, None, None, None


class Context:
    """The ranks of cp, and what of a batch this one works on.

    Args:
        mesh: of the axis cp alone.
        way: one of WAYS.

    Attributes:
        part: of the micro-batch under way; None where every rank has whole rows.
    """

    def __init__(self, mesh: DeviceMesh, way: str) -> None:
        self.group, self.way, self.ranks = mesh.get_group(), way, mesh.size()
        self.part: Part | None = None
        self.kept = Kept()

    @contextmanager
    def working_on(self, part: Part | None) -> Iterator[None]:
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def stay_out_of_graphs(self) -> None:
        """Let compiled blocks call attention, and not compile it."""
        self.attend = torch.compiler.disable(self.attend)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, **scores: Any
    ) -> Tensor:
        """Causal attention of this rank's queries to the whole sequence.

        Args:
            q: [rows, heads, tokens, head_dim]; k, v may have fewer heads, and v another width.
            sinks: [heads], see models/sinks.py.
            scores: the fields of formula.Scores.

        Returns:
            [rows, heads, tokens, width of v].

        Raises:
            UserError: the model hands on other tokens than it was given.
        """
        if q.shape[2] != self.part.places.shape[2] or k.shape[2] != q.shape[2]:
            raise UserError(
                f"cp={self.ranks}: attention gets {q.shape[2]} queries and {k.shape[2]} keys of a "
                f"rank's {self.part.places.shape[2]} tokens: this model's layers change a row"
            )
        rule = Scores(**scores)
        width = max(q.shape[3], v.shape[3])  # zeros change no score, and keys travel with values
        states = (x if x.shape[3] == width else _widened(x, width) for x in (q, k, v))
        how = WAYS[self.way], self.part, rule, self.group, self.kept
        out = AcrossRanks.apply(*states, sinks, *how)
        return out[..., : v.shape[3]]


def _widened(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[-1]))
