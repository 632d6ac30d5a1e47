"""Ring attention: keys and values go round while each rank attends to those that it has.

    step 0        rank 0: q0 with k0     rank 1: q1 with k1     rank 2: q2 with k2
                       `---- k0 ---->         `---- k1 ---->         `---- k2 ----> rank 0
    step 1        rank 0: q0 with k2     rank 1: q1 with k0     rank 2: q2 with k1
    step 2        rank 0: q0 with k1     rank 1: q1 with k2     rank 2: q2 with k0

What comes next is asked for before the rank computes with what it has. In the backward keys and
values go round once more, and behind each of them its gradient, to which every rank adds its term,
until it is home. No rank ever holds the keys of more than two.

Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..messages.carriers import Shift
from .blockwise import Gradients, Joined, of_sinks
from .formula import Scores
from .parts import Part


def forward(
    inputs: Sequence[Tensor | None], part: Part, scores: Scores, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """The result at this rank's tokens and its log-sum-exp; `inputs` of attention.AcrossRanks."""
    q, k, v, sinks = inputs
    joined, pair = Joined(q, sinks), torch.stack((k, v))
    for step in range(part.ranks):
        coming = Shift(pair, group) if step < part.ranks - 1 else None
        owner = (part.rank - step) % part.ranks
        joined.add(*pair, part.rows(owner, scores.window), scores, owner)
        pair = coming.wait() if coming else pair
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
    pair = torch.stack((k, v))
    of_q, behind = torch.zeros_like(q, dtype=lse.dtype), None
    for step in range(part.ranks):
        coming = Shift(pair, group) if step < part.ranks - 1 else None
        owner = (part.rank - step) % part.ranks
        of_pair = torch.zeros_like(pair, dtype=lse.dtype)
        rows = part.rows(owner, scores.window)
        Gradients(of_q, *of_pair).add(grad, (q, *pair), out, lse, rows, scores, owner)
        if behind is not None:
            of_pair += behind.wait()
        behind = Shift(of_pair, group)
        pair = coming.wait() if coming else pair
    of_states = (x.to(q.dtype) for x in (of_q, *behind.wait()))
    return *of_states, of_sinks(grad, out, lse, sinks)
