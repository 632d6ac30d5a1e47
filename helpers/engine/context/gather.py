"""Attention to gathered keys and values: every rank's queries meet all keys at once.

    forward      k0 | k1 | k2  --all-gather-->  k0 k1 k2 on every rank, given up after the layer
    backward     the same again, and the gradients of all keys  --reduce-scatter-->  each its own

Two messages where a ring has as many as ranks, and no rank waits for its neighbour's pace; but
while a layer runs, the keys and values of the whole row stand in memory. With few key heads that is
little.

Source: Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..messages.carriers import gather_single, scatter_single
from .blockwise import Gradients, Joined, of_sinks
from .formula import Scores
from .parts import Part


def forward(
    inputs: Sequence[Tensor | None], part: Part, scores: Scores, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """The result at this rank's tokens and its log-sum-exp; `inputs` of attention.AcrossRanks."""
    q, k, v, sinks = inputs
    joined = Joined(q, sinks)
    for owner, pair in enumerate(_gathered(k, v, group)):
        joined.add(*pair, part.rows(owner, scores.window), scores, owner)
    return joined.out.to(q.dtype), joined.lse


def backward(
    grad: Tensor,
    inputs: Sequence[Tensor | None],
    out: Tensor,
    lse: Tensor,
    part: Part,
    scores: Scores,
    group: ProcessGroup,
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs."""
    q, k, v, sinks = inputs
    every = _gathered(k, v, group)
    of_q = torch.zeros_like(q, dtype=lse.dtype)
    of_every = torch.zeros_like(every, dtype=lse.dtype)
    for owner in range(part.ranks):
        rows = part.rows(owner, scores.window)
        into = Gradients(of_q, *of_every[owner])
        into.add(grad, (q, *every[owner]), out, lse, rows, scores, owner)
    of_pair = torch.empty_like(of_every[0])
    scatter_single(of_pair, of_every.flatten(0, 1), group)
    of_states = (x.to(q.dtype) for x in (of_q, *of_pair))
    return *of_states, of_sinks(grad, out, lse, sinks)


def _gathered(k: Tensor, v: Tensor, group: ProcessGroup) -> Tensor:
    """The keys and values of all ranks, [ranks, 2, *shape of k]."""
    pair = torch.stack((k, v))
    every = pair.new_empty(group.size(), *pair.shape)
    gather_single(every.flatten(0, 1), pair, group)
    return every
