"""Attention to some keys by its formula, with their scores in memory.

For what torch's kernels do not do (dropout that can be drawn again, softcaps), and to hold them
against.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .stretches import WHOLE, Pair, mask

NOTHING = -1e30  # the log-sum-exp of no keys: minus infinity would make NaN of a difference
Draw = tuple[int, int, int]  # what dropout is drawn for: part, row, number of the pair


@dataclass(frozen=True)
class Scores:
    """How scores are made of queries and keys.

    scale: of the products; softcap: bounds them to softcap tanh(score / softcap).
    window: keys that a query sees at most.
    key_bias: [heads, places in the row], added, as ALiBi is.
    dropout: probability for a weight to be left out; seed: of what is drawn for it.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    key_bias: Tensor | None = None
    dropout: float = 0.0
    seed: int = 0


def forward(
    q: Tensor, k: Tensor, v: Tensor, pair: Pair, scores: Scores, draw: Draw
) -> tuple[Tensor, Tensor]:
    """Result, [rows, heads, queries, head_dim], and log-sum-exp, both in at least float32.

    Args:
        q, k, v: [rows, heads or key heads, tokens of the stretch, head_dim].
    """
    values, _ = _values(q, k, pair, scores)
    lse = values.logsumexp(-1)
    weights = (values - lse.unsqueeze(-1)).exp()
    return _dropped(weights, scores, draw) @ for_heads(v, q).to(weights.dtype), lse


def backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    pair: Pair,
    scores: Scores,
    draw: Draw,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values.

    Args:
        grad: of the attention to all keys, whose result is `out` and whose log-sum-exp is `lse`.
    """
    q, k, v = inputs
    values, slope = _values(q, k, pair, scores)
    weights = (values - lse.unsqueeze(-1)).exp()
    grad, wide_v = grad.to(weights.dtype), for_heads(v, q).to(weights.dtype)
    of_weights = _dropped(grad @ wide_v.mT, scores, draw)
    through = (grad * out).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - through)
    if slope is not None:
        of_scores = of_scores * (1 - slope.square())
    of_scores = of_scores * scores.scale
    of_q = of_scores @ for_heads(k, q).to(weights.dtype)
    of_k = of_scores.mT @ q.to(weights.dtype)
    of_v = _dropped(weights, scores, draw).mT @ grad
    return of_q, of_groups(of_k, k), of_groups(of_v, v)


def _values(q: Tensor, k: Tensor, pair: Pair, scores: Scores) -> tuple[Tensor, Tensor | None]:
    """The scores, hidden ones at NOTHING, and where they are capped their tangents."""
    wide = torch.promote_types(q.dtype, torch.float32)
    values, slope = q.to(wide) @ for_heads(k, q).to(wide).mT * scores.scale, None
    if scores.softcap is not None:
        slope = (values / scores.softcap).tanh()
        values = scores.softcap * slope
    if scores.key_bias is not None:
        values = values + scores.key_bias[:, None, pair.keys.first : pair.keys.end]
    if pair.sees != WHOLE:
        values = values.masked_fill(~mask(pair, scores.window, q.device), NOTHING)
    return values, slope


def _dropped(weights: Tensor, scores: Scores, draw: Draw) -> Tensor:
    """Weights of which some are left out; the same ones for the same draw."""
    if scores.dropout == 0:
        return weights
    part, row, number = draw
    generator = torch.Generator(weights.device)
    generator.manual_seed((scores.seed + 1_000_003 * part + 10_007 * row + number) % 2**63)
    kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= scores.dropout
    return weights * kept / (1 - scores.dropout)


def for_heads(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values, once for each head of the queries that use them."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def of_groups(gradient: Tensor, like: Tensor) -> Tensor:
    """The transpose: a head's gradient is the sum over the queries' heads that use it."""
    return gradient.unflatten(1, (like.shape[1], -1)).sum(2)
