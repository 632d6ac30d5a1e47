"""Attention to keys that come in parts: each part's result with its log-sum-exp, joined.

With scores s and values v, a query's attention to the keys of one part is

    o = sum_j exp(s_j - l) v_j,     l = log sum_j exp(s_j)

and two parts a and b are joined without the scores of either:

    l = log(exp(l_a) + exp(l_b)),   o = exp(l_a - l) o_a + exp(l_b - l) o_b

The backward needs no more than o and l of the whole: of any part exp(s_j - l) are the very weights
that the whole softmax gave its keys.

torch's fused kernels give l beside o; where there is none, formula.py does.

Sources: Milakov and Gimelshein 2018, Online normalizer calculation for softmax; Dao et al. 2022,
FlashAttention, section 3.1; Liu et al. 2023, Ring Attention, section 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from . import formula
from .formula import NOTHING, Draw, Scores, for_heads, of_groups
from .stretches import CAUSAL, MASKED, Pair, Rows, mask

aten = torch.ops.aten


class Joined:
    """Attention of queries to what keys have come so far.

    q: [rows, heads, queries, head_dim]; out: of its shape in at least float32; lse: without the
    last dim. sinks: [heads], what came before any key: see models/sinks.py.
    """

    def __init__(self, q: Tensor, sinks: Tensor | None = None) -> None:
        wide = torch.promote_types(q.dtype, torch.float32)
        self.q = q
        self.out = torch.zeros(q.shape, dtype=wide, device=q.device)
        self.lse = torch.full(q.shape[:3], NOTHING, dtype=wide, device=q.device)
        if sinks is not None:
            self.lse.copy_(sinks[:, None])

    def add(self, k: Tensor, v: Tensor, rows: Rows, scores: Scores, part: int = 0) -> None:
        """Attend to the keys of a part as well, [rows, key heads, keys, head_dim]; `part` is its
        number, for which dropout draws."""
        for these, number, pair in _each(rows):
            queries, keys = pair.queries.here, pair.keys.here
            found, lse = _forward(
                self.q[these, :, queries],
                k[these, :, keys],
                v[these, :, keys],
                pair,
                scores,
                (part, these.start or 0, number),
            )
            out, before = self.out[these, :, queries], self.lse[these, :, queries]
            out += (found - out) * torch.sigmoid(lse - before).unsqueeze(-1)
            before.copy_(torch.logaddexp(before, lse))


@dataclass(frozen=True)
class Gradients:
    """What a part's keys, values and the queries get, added up in at least float32."""

    q: Tensor
    k: Tensor
    v: Tensor

    def add(
        self,
        grad: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        lse: Tensor,
        rows: Rows,
        scores: Scores,
        part: int = 0,
    ) -> None:
        """Add what comes through a part.

        Args:
            grad: of the joined result `out`, whose log-sum-exp is `lse`.
            inputs: queries, and the part's keys and values.
        """
        for these, number, pair in _each(rows):
            queries, keys = pair.queries.here, pair.keys.here
            places = (queries, keys, keys)
            cut = tuple(x[these, :, place] for x, place in zip(inputs, places))
            result = (x[these, :, queries] for x in (grad, out, lse))
            found = _backward(*result, cut, pair, scores, (part, these.start or 0, number))
            for total, term, place in zip((self.q, self.k, self.v), found, places):
                total[these, :, place] += term


def of_sinks(grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor | None:
    """The gradient of the sinks, [heads], of which `out` and its log-sum-exp know: a weight more,
    whose value is zero."""
    if sinks is None:
        return None
    weights = (sinks[:, None] - lse).exp()
    through = (grad.to(lse.dtype) * out).sum(-1)
    return -(weights * through).sum((0, 2)).to(sinks.dtype)


def _each(rows: Rows) -> Iterator[tuple[slice, int, Pair]]:
    for these, pairs in rows:
        for number, pair in enumerate(pairs):
            yield these, number, pair


def _forward(
    q: Tensor, k: Tensor, v: Tensor, pair: Pair, scores: Scores, draw: Draw
) -> tuple[Tensor, Tensor]:
    """Result and log-sum-exp of one pair, [rows, heads, queries, head_dim] and without the last."""
    bias, causal = _bias(q, pair, scores), pair.sees == CAUSAL
    if not _has_kernel(q, bias, scores):
        return formula.forward(q, k, v, pair, scores, draw)
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=scores.scale
        )
    else:
        out, lse, *_ = aten._scaled_dot_product_flash_attention(
            q, for_heads(k, q), for_heads(v, q), 0.0, causal, scale=scores.scale
        )
    if pair.sees == MASKED:  # of a query that sees none the kernel says that its sum is 1
        seen = mask(pair, scores.window, q.device).any(1)
        lse = lse.where(seen, NOTHING)
    return out, lse


def _backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    pair: Pair,
    scores: Scores,
    draw: Draw,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of one pair's queries, keys and values."""
    q, k, v = inputs
    bias, causal = _bias(q, pair, scores), pair.sees == CAUSAL
    if not _has_kernel(q, bias, scores):
        return formula.backward(grad, out, lse, inputs, pair, scores, draw)
    if q.device.type == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal, attn_mask=bias, scale=scores.scale
        )
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of dropout: there is none
    found = aten._scaled_dot_product_flash_attention_backward(
        grad,
        q,
        for_heads(k, q),
        for_heads(v, q),
        out,
        lse,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        state[:1],
        state[1:],
        scale=scores.scale,
    )
    return found[0], *(of_groups(x, k) for x in found[1:])


def _has_kernel(q: Tensor, bias: Tensor | None, scores: Scores) -> bool:
    """One that gives the log-sum-exp: of plain scores, and on a GPU in half precision and without a
    bias. `meta` stands for a GPU."""
    if scores.softcap is not None or scores.dropout > 0:
        return False
    if q.device.type == "cpu":
        return True
    on_gpu, narrow = q.device.type in ("cuda", "meta"), q.dtype in (torch.float16, torch.bfloat16)
    return on_gpu and narrow and bias is None


def _bias(q: Tensor, pair: Pair, scores: Scores) -> Tensor | None:
    """What is added to the scores of a pair, [1, heads or 1, queries, keys]; None for nothing."""
    bias = None
    if scores.key_bias is not None:
        of_keys = scores.key_bias[:, pair.keys.first : pair.keys.end].to(q.dtype)
        bias = of_keys[None, :, None].expand(-1, -1, pair.queries.length, -1)
    if pair.sees != MASKED:
        return bias
    hidden = ~mask(pair, scores.window, q.device)
    return (
        q.new_zeros(1, 1, 1, 1).where(~hidden, -torch.inf)
        if bias is None
        else bias.masked_fill(hidden, -torch.inf)
    )
