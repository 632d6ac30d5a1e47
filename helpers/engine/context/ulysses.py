"""Ulysses: for attention, ranks change from a part of the sequence to a part of the heads.

    rank 0   tokens 0-3, heads a b c d   --all-to-all-->   tokens 0-7, heads a b
    rank 1   tokens 4-7, heads a b c d                     tokens 0-7, heads c d     and back

Each rank then attends as one process would, to whole rows with fewer heads, so the work is
balanced however the row was cut. There must be a head for every rank. Where ranks outnumber the
heads of keys and values, each of these goes to all ranks whose queries use it.

Source: Jacobs et al. 2023, DeepSpeed Ulysses, section 3.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..messages.carriers import exchange
from .blockwise import Gradients, Joined, of_sinks
from .formula import Scores, of_groups
from .parts import Part


def forward(
    inputs: Sequence[Tensor | None], part: Part, scores: Scores, group: ProcessGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """The result at this rank's tokens, the result at its heads, and their log-sum-exp;
    `inputs` as of attention.AcrossRanks."""
    *states, sinks = inputs
    q, k, v = _whole_rows(states, part, group)
    joined = Joined(q, _own(sinks, group))
    joined.add(k, v, part.whole_rows(scores.window), _of_heads(scores, group), part.rank)
    out = joined.out.to(q.dtype)
    return to_tokens(out, part, group), out, joined.lse


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
    *states, sinks = inputs
    wide = _whole_rows(states, part, group)
    found = Gradients(*(torch.zeros_like(x, dtype=lse.dtype) for x in wide))
    (grad,) = _whole_rows((grad,), part, group)
    rows = part.whole_rows(scores.window)
    found.add(grad, wide, out, lse, rows, _of_heads(scores, group), part.rank)
    of_states = (
        of_groups(to_tokens(x, part, group), like).to(like.dtype)
        for x, like in zip((found.q, found.k, found.v), states)
    )
    return *of_states, _of_all_sinks(grad, out, lse, sinks, group)


def _whole_rows(inputs: Sequence[Tensor], part: Part, group: ProcessGroup) -> tuple[Tensor, ...]:
    """This rank's heads of each, at all tokens; at least one, where there are fewer than ranks."""
    n = group.size()
    enough = (x if x.shape[1] % n == 0 else x.repeat_interleave(n // x.shape[1], 1) for x in inputs)
    return tuple(to_heads(x, part, group) for x in enough)


def _of_heads(scores: Scores, group: ProcessGroup) -> Scores:
    return replace(scores, key_bias=_own(scores.key_bias, group))


def _own(of_heads: Tensor | None, group: ProcessGroup) -> Tensor | None:
    """This rank's heads of what has [heads, ..]."""
    return None if of_heads is None else of_heads.chunk(group.size())[group.rank()]


def _of_all_sinks(
    grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None, group: ProcessGroup
) -> Tensor | None:
    """The gradient of the sinks, of which this rank has that of its heads."""
    if sinks is None:
        return None
    found = torch.zeros_like(sinks)
    _own(found, group).copy_(of_sinks(grad, out, lse, _own(sinks, group)))
    return found


def to_heads(x: Tensor, part: Part, group: ProcessGroup) -> Tensor:
    """[rows, heads, tokens, head_dim] to [rows, heads / n, seq, head_dim], in the rows' order."""
    sent = x.unflatten(1, (group.size(), -1)).movedim(1, 0).contiguous()
    got = torch.empty_like(sent)
    exchange(got, sent, group)
    together = got.movedim(0, 2).flatten(2, 3)  # rank after rank, as their tokens lie
    return together.gather(2, _like(part.order, together))


def to_tokens(x: Tensor, part: Part, group: ProcessGroup) -> Tensor:
    """The transpose, and the inverse."""
    by_rank = x.gather(2, _like(part.places.transpose(0, 1).flatten(1), x))
    sent = by_rank.unflatten(2, (group.size(), -1)).movedim(2, 0).contiguous()
    got = torch.empty_like(sent)
    exchange(got, sent, group)
    return got.movedim(0, 1).flatten(1, 2)


def _like(index: Tensor, x: Tensor) -> Tensor:
    """[rows or 1, seq] for a gather along the tokens of [rows, heads, seq, head_dim]."""
    return index.to(x.device, non_blocking=True)[:, None, :, None].expand(
        len(x), x.shape[1], -1, x.shape[3]
    )
