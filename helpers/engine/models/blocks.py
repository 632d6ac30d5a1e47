"""Forwards of our own for blocks that transformers' forward does not let us split.

They compute what transformers' do and take the same arguments. Two things differ: attention goes
through the one call in `attention.py`, and a block whose attention and MLP are added to the same
residual crosses the boundary of what tp splits once on each side. Rotary positions have two
conventions: GPT-J turns neighbours, the others two halves (Su et al. 2021, section 3.4.2).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import attend, both


def enter_normed(self: nn.Module, x: Tensor, *norms: nn.Module) -> list[Tensor]:
    """Norms of one input, inside the boundary, with one message on the way back.

    With several norms the boundary is crossed before them: their gradients are then partial sums,
    two small vectors per norm, summed once a step. Under sequence parallelism the norms stay
    outside, where they see only this rank's part of the sequence.
    """
    if len(norms) > 1 and not self.boundary.sequence_parallel:
        x = self.boundary.enter(x)
        return [norm(x) for norm in norms]
    return [self.boundary.enter(norm(x)) for norm in norms]


def gptj_block(self: nn.Module, hidden_states: Tensor, **kwargs) -> Tensor | tuple[Tensor, None]:
    """GPT-J's block: one norm, attention and MLP side by side. [batch, seq, hidden]."""
    (inside,) = enter_normed(self, hidden_states, self.ln_1)
    attended, _ = self.attn(inside, **kwargs)
    out = self.boundary.leave(attended + self.mlp(inside)) + hidden_states
    return (out, None) if hasattr(self.attn, "embed_positions") else out


def neox_block(self: nn.Module, hidden_states: Tensor, **kwargs) -> Tensor:
    """GPT-NeoX's block with parallel residual: two norms of one input. [batch, seq, hidden]."""
    before_attention, before_mlp = enter_normed(
        self, hidden_states, self.input_layernorm, self.post_attention_layernorm
    )
    attended, _ = self.attention(before_attention, **kwargs)
    # dropout of partial sums by one mask that all ranks draw alike is dropout of the sum
    partial = self.post_attention_dropout(attended) + self.post_mlp_dropout(self.mlp(before_mlp))
    return self.boundary.leave(partial) + hidden_states


def falcon_block(self: nn.Module, hidden_states: Tensor, **kwargs) -> tuple[Tensor, None]:
    """Falcon's block with parallel attention, with one norm or two. [batch, seq, hidden]."""
    if hasattr(self, "ln_attn"):
        before_attention, before_mlp = enter_normed(self, hidden_states, self.ln_attn, self.ln_mlp)
    else:
        (before_attention,) = enter_normed(self, hidden_states, self.input_layernorm)
        before_mlp = before_attention
    attended, _ = self.self_attention(before_attention, **kwargs)
    total = self.boundary.leave(attended + self.mlp(before_mlp))
    return self.boundary.dropout(total, self.hidden_dropout, self.training) + hidden_states, None


def gptj_attention(
    self: nn.Module,
    hidden_states: Tensor,
    layer_past=None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    cache=None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """GPT-J's attention over this rank's heads: [batch, seq, hidden] to partial sums of it.

    Until transformers 5.24 each attention looks up sines and cosines in a table of its own.
    """
    heads = (*hidden_states.shape[:2], -1, self.head_dim)
    query = self.q_proj(hidden_states).view(heads)
    key = self.k_proj(hidden_states).view(heads)
    value = self.v_proj(hidden_states).view(heads).transpose(1, 2)
    if position_embeddings is None:
        table = self.embed_positions.to(query.device)[position_ids].to(query.dtype)
        position_embeddings, dropout = table.chunk(2, dim=-1), self.attn_dropout.p
    else:
        dropout = self.attention_dropout
    query = rotate_pairs(query, *position_embeddings).transpose(1, 2)
    key = rotate_pairs(key, *position_embeddings).transpose(1, 2)
    cache = layer_past if cache is None else cache
    if cache is not None:
        key, value = cache.update(key, value, self.layer_idx)
    dropout = dropout if self.training else 0.0
    attended = attend(self.boundary, query, key, value, attention_mask, dropout)
    return self.resid_dropout(self.out_proj(attended.flatten(2))), None


def falcon_attention(
    self: nn.Module,
    hidden_states: Tensor,
    alibi: Tensor | None = None,
    attention_mask: Tensor | None = None,
    layer_past=None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Falcon's attention over this rank's heads: [batch, seq, hidden] to partial sums of it.

    Its three layouts of the fused projection are one: [groups, queries of a group + 2, head_dim].
    Under ALiBi transformers has put the slopes of all heads into the mask: a rank takes its own.
    """
    groups = max(1, self.num_kv_heads // self.boundary.size)
    fused = self.query_key_value(hidden_states).unflatten(-1, (groups, -1, self.head_dim))
    query, key, value = fused.split([fused.shape[3] - 2, 1, 1], dim=3)
    query, key, value = (x.flatten(2, 3).transpose(1, 2) for x in (query, key, value))
    if alibi is None:
        query, key = (
            rotate_halves(query, *position_embeddings),
            rotate_halves(key, *position_embeddings),
        )
    elif attention_mask is not None:
        attention_mask = self.boundary.heads(attention_mask)
    bias = None if alibi is None else falcon_alibi(self, query)
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    dropout = self.attention_dropout.p if self.training and alibi is not None else 0.0
    attended = attend(self.boundary, query, key, value, attention_mask, dropout, key_bias=bias)
    return self.dense(attended.flatten(2)), None


def gpt_neo_attention(
    self: nn.Module,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    layer_past=None,
    **kwargs,
) -> tuple[Tensor, None]:
    """GPT-Neo's attention over this rank's heads: [batch, seq, hidden] to partial sums of it.

    Scores are not scaled. In every other layer a token sees the last `window_size` tokens alone.
    """
    heads = (*hidden_states.shape[:2], -1, self.head_dim)
    query, key, value = (
        layer(hidden_states).view(heads).transpose(1, 2)
        for layer in (self.q_proj, self.k_proj, self.v_proj)
    )
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_id)
    window = None
    if self.attention_type == "local":
        window, queries, keys = self.config.window_size, query.shape[2], key.shape[2]
        attention_mask = both(self.bias[:, :, keys - queries : keys, :keys], attention_mask)
    dropout = self.attn_dropout.p if self.training else 0.0
    attended = attend(
        self.boundary, query, key, value, attention_mask, dropout, scale=1.0, window=window
    )
    return self.resid_dropout(self.out_proj(attended.flatten(2))), None


def bloom_attention(
    self: nn.Module,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    layer_past=None,
    **kwargs,
) -> tuple[Tensor, None]:
    """BLOOM's attention over this rank's heads, and what its class adds to it.

    Args:
        hidden_states: [batch, seq, hidden], inside the boundary; residual: of the same, outside.
        alibi: [batch * all heads, 1, keys], of which a rank takes its own heads' slopes.
    """
    fused = self.query_key_value(hidden_states).unflatten(-1, (-1, 3, self.head_dim))
    query, key, value = (x.transpose(1, 2) for x in fused.unbind(3))
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    queries, keys = query.shape[2], key.shape[2]
    bias = bloom_alibi(self, query)
    if bias is None:
        if attention_mask is None:
            attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
            attention_mask = attention_mask.tril(keys - queries)
        slopes = self.boundary.heads(alibi.unflatten(0, (query.shape[0], -1)))
        attention_mask = both(attention_mask, slopes)
    dropout = self.attention_dropout.p if self.training else 0.0
    attended = attend(self.boundary, query, key, value, attention_mask, dropout, key_bias=bias)
    out = F.dropout(self.dense(attended.flatten(2)), self.hidden_dropout, self.training)
    return residual + out, None


def falcon_alibi(self: nn.Module, query: Tensor) -> Tensor | None:
    """What Falcon adds to the scores, see `_alibi`."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    alibi = _alibi(self, query, build_alibi_tensor)
    return None if alibi is None else alibi * self.inv_norm_factor


def bloom_alibi(self: nn.Module, query: Tensor) -> Tensor | None:
    """What BLOOM adds to the scores, see `_alibi`."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    return _alibi(self, query, build_alibi_tensor)


def _alibi(self: nn.Module, query: Tensor, build: Callable[..., Tensor]) -> Tensor | None:
    """What ALiBi adds to the scores, by the key's place in the whole row, [heads, seq], where ranks
    of cp have parts of it, or attention is inside documents; None where it is in the mask."""
    context = self.boundary.context
    split = context is not None and context.part is not None
    if not split and self.boundary.documents is None:
        return None
    length = context.part.length if split else query.shape[2]
    ones = torch.ones(1, length, dtype=torch.long, device=query.device)
    alibi = build(ones, self.num_heads, dtype=query.dtype)
    return self.boundary.heads(alibi.transpose(0, 1))[0]


def rotate_pairs(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Rotary position embedding on interleaved pairs, GPT-J's convention.

    Args:
        x: [batch, seq, heads, head_dim]
        sin, cos: [batch or 1, seq, rotary_dim / 2]. Dims beyond rotary_dim pass.
    """
    return _Turned.apply(x, sin.unsqueeze(2), cos.unsqueeze(2))


class _Turned(torch.autograd.Function):
    """A copy of a head with its first dims turned. Its gradient is turned back. As autograd has it,
    heads are joined from parts, which took an H200 22 of the 602 ms of a step of GPT-J-6B."""

    @staticmethod
    def forward(ctx, x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
        ctx.save_for_backward(sin, cos)
        return _turned(x, sin, cos)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        sin, cos = ctx.saved_tensors
        return _turned(grad, -sin, cos), None, None


def _turned(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    pairs, turned = (y[..., : 2 * sin.shape[-1]].unflatten(-1, (-1, 2)) for y in (x, out))
    turned[..., 0].mul_(cos).sub_(pairs[..., 1] * sin)
    turned[..., 1].mul_(cos).add_(pairs[..., 0] * sin)
    return out


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on dims half a head apart. x: [batch, heads, seq, head_dim]."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def on_input(function: Callable[[Tensor], Tensor]) -> Callable:
    """A hook for a module's forward: its first input, by position or name, goes through
    `function`."""

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (function(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": function(kwargs["hidden_states"])}

    return hook


def on_output(function: Callable[[Tensor], Tensor]) -> Callable:
    """A hook for a module's forward: what it gives, or the first of several, goes through
    `function`."""

    def hook(module: nn.Module, args: tuple, out: Any) -> Any:
        return (function(out[0]), *out[1:]) if isinstance(out, tuple) else function(out)

    return hook
