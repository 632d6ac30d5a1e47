"""9a, 9b and 9c: attention whose tokens are on several ranks.

Joined: each rank has attended to its own keys, and the results become one. Ring: keys and values
go round. Heads for tokens: the all-to-all of Ulysses, and its way back.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.lab.exercises.on_ranks.judge import EMPTY, near, random, wrong_kind
from helpers.lab.exercises.on_ranks.observed import only_sends

RANKS = 3  # on two, the neighbour to the left is the one to the right
HEADS, TOKENS, WIDTH = 2, 4, 5  # tokens of a rank
LARGE = 50  # by which scores are multiplied: exp of them is more than a float64 holds


def _attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Attention, [heads, queries, width], and the log of its weights' sum, [heads, queries]."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def exam_joined(answer: Callable[..., Any]) -> str:
    """9a: join(out, lse, rank, ranks), of ordinary scores and of scores too large for exp."""
    for factor in (1, LARGE):
        if words := _joined(answer, factor):
            return words
    return ""


def _joined(answer: Callable[..., Any], factor: float) -> str:
    rank = dist.get_rank()
    q = factor * random(HEADS, TOKENS, WIDTH)
    pairs = [[random(HEADS, TOKENS, WIDTH, seed=2 * r + n) for n in (1, 2)] for r in range(RANKS)]
    pairs = [(factor * k, v) for k, v in pairs]
    wanted, _ = _attended(q, *(torch.cat(parts, 1) for parts in zip(*pairs)))
    each = [_attended(q, *pair) for pair in pairs]
    out, lse = each[rank]
    found = answer(out.clone(), lse.clone(), rank, RANKS)
    if words := wrong_kind(found, wanted):
        return words
    if near(found, wanted):
        return ""
    if not found.isfinite().all():
        return (
            "with large scores the result is not finite: subtract the largest lse of all ranks "
            "before exp"
        )
    outs, sums = zip(*each)
    if near(found, out):
        return "this is attention to the rank's own keys alone"
    if near(found, torch.stack(outs).mean(0)):
        return "this is the mean of the ranks' results; a rank counts by the sum of its weights"
    weights = torch.stack([one.exp() for one in sums]).unsqueeze(-1)
    if near(found, (torch.stack(outs) * weights).sum(0)):
        return "the weighted results are added, but not divided by the sum of all weights"
    by_lse = torch.stack(sums).unsqueeze(-1)
    if near(found, (torch.stack(outs) * by_lse).sum(0) / by_lse.sum(0)):
        return "results are weighted by lse itself; it is the log of the weight"
    return "the result is not attention to all keys"


def exam_ring(answer: Callable[..., Any]) -> str:
    """9b: ring_attention(q, k, v, rank, ranks), causal, against the whole, and what was sent."""
    rank = dist.get_rank()
    every = [[random(HEADS, TOKENS, WIDTH, seed=3 * r + n) for n in range(3)] for r in range(RANKS)]
    q, k, v = (torch.cat(parts, 1) for parts in zip(*every))
    length = RANKS * TOKENS
    causal = torch.ones(length, length).tril().bool()
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    wanted = _attended(q, k, v, causal)[0][:, mine]
    with only_sends() as sent:
        found = answer(*(x.clone() for x in every[rank]), rank, RANKS)
    if words := wrong_kind(found, wanted):
        return words
    if not near(found, wanted):
        return _of_attention(found, (q[:, mine], k, v), causal[mine], rank)
    if words := sent.off_ring(rank, RANKS):
        return words
    enough = (RANKS - 1) * 2 * every[rank][1].nbytes
    if sent.bytes > enough:
        return f"the result is right, but {sent.bytes} bytes were sent where {enough} are enough"
    return ""


def _of_attention(
    found: Tensor, whole: tuple[Tensor, Tensor, Tensor], seen: Tensor, rank: int
) -> str:
    q, k, v = whole
    own = torch.zeros_like(seen)
    own[:, rank * TOKENS : (rank + 1) * TOKENS] = True
    if not found.isfinite().all():
        return (
            "the result is not finite: where a rank sees none of the keys, nothing is to be added"
        )
    if near(found, _attended(q, k, v)[0]):
        return "every query has seen every key: a token attends to what came before it"
    if near(found, _attended(q, k, v, seen & own)[0]):
        return "this is attention to the rank's own keys alone"
    inside = torch.ones(TOKENS, TOKENS).tril().bool().repeat(1, RANKS)
    if near(found, _attended(q, k, v, inside)[0]):
        return (
            "the mask is that of the rank's own keys for every part: compare places in the whole "
            "sequence, and whose keys these are"
        )
    parts = [_attended(q, k, v, seen & block)[0] for block in _blocks(seen) if (seen & block).any()]
    if near(found, torch.stack(parts).mean(0)):
        return "this is the mean of the parts' results; a part counts by the sum of its weights"
    return "the result is not causal attention to all keys: whose keys are here in which turn?"


def _blocks(seen: Tensor) -> list[Tensor]:
    """By rank, where its keys are."""
    columns = torch.arange(seen.shape[1]) // TOKENS
    return [(columns == rank).expand_as(seen) for rank in range(RANKS)]


def exam_heads(answer: Any) -> str:
    """9c: (to_heads, to_tokens), each of (x, rank, ranks): there, back, and what was sent."""
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(map(callable, answer))):
        return "to_heads and to_tokens are functions"
    rank, heads = dist.get_rank(), 2 * RANKS
    every = [random(TOKENS, heads, WIDTH, seed=one) for one in range(RANKS)]
    whole, own = torch.cat(every), every[rank]
    wanted = whole[:, 2 * rank : 2 * rank + 2]
    to_heads, to_tokens = answer
    with only_sends(or_all_to_all=True) as sent:
        found = to_heads(own.clone(), rank, RANKS)
        if words := wrong_kind(found, wanted):
            return words if words == EMPTY else f"of to_heads, {words}"
        if not near(found, wanted):
            return _of_heads(found, wanted, rank)
        back = to_tokens(wanted.clone(), rank, RANKS)
    if words := wrong_kind(back, own):
        return f"of to_tokens, {'nothing was returned' if words == EMPTY else words}"
    if not near(back, own):
        return "to_heads is right; to_tokens does not give back what to_heads was given"
    enough = 2 * own.nbytes * (RANKS - 1) // RANKS
    if sent.bytes > enough:
        return f"all is right, but {sent.bytes} bytes were sent where {enough} are enough"
    return ""


def _of_heads(found: Tensor, wanted: Tensor, rank: int) -> str:
    if near(found.sort(0).values, wanted.sort(0).values):
        return "of to_heads, the heads are right and the tokens are not in their order"
    return f"of to_heads, these are not heads {2 * rank} and {2 * rank + 1} of all tokens"
