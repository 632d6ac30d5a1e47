"""Forwards of our own for blocks that transformers' forward does not let us split.

They compute what transformers' do and take the same arguments. Two things differ: attention goes
through the one call in `attention.py`, and a block whose attention and MLP are added to the same
residual crosses the boundary of what tp splits once on each side.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .attention import attend
from .rotary import rotate_halves, rotate_pairs


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


def gptj_block(self: nn.Module, hidden_states: Tensor, **kwargs) -> tuple[Tensor, None]:
    """GPT-J's block: one norm, attention and MLP side by side. [batch, seq, hidden]."""
    (inside,) = enter_normed(self, hidden_states, self.ln_1)
    attended, _ = self.attn(inside, **kwargs)
    return self.boundary.leave(attended + self.mlp(inside)) + hidden_states, None


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
    **kwargs,
) -> tuple[Tensor, None]:
    """GPT-J's attention over this rank's heads: [batch, seq, hidden] to partial sums of it."""
    heads = (*hidden_states.shape[:2], -1, self.head_dim)
    query = self.q_proj(hidden_states).view(heads)
    key = self.k_proj(hidden_states).view(heads)
    value = self.v_proj(hidden_states).view(heads).transpose(1, 2)
    table = self.embed_positions.to(query.device)[position_ids].to(query.dtype)
    query = rotate_pairs(query, table, self.rotary_dim).transpose(1, 2)
    key = rotate_pairs(key, table, self.rotary_dim).transpose(1, 2)
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    dropout = self.attn_dropout.p if self.training else 0.0
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


def falcon_alibi(self: nn.Module, query: Tensor) -> Tensor | None:
    """What ALiBi adds to the scores, by the key's place in the whole row, [heads, seq], where ranks
    of cp have parts of it; else it is in the mask."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    context = self.boundary.context
    if context is None or context.part is None:
        return None
    ones = torch.ones(1, context.part.length, dtype=torch.long, device=query.device)
    alibi = build_alibi_tensor(ones, self.num_heads, dtype=query.dtype) * self.inv_norm_factor
    return self.boundary.heads(alibi.transpose(0, 1))[0]


def on_input(function: Callable[[Tensor], Tensor]) -> Callable:
    """A hook for a module's forward: its first input, by position or name, goes through
    `function`."""

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (function(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": function(kwargs["hidden_states"])}

    return hook
