"""Forwards of our own for blocks that transformers' forward does not let us split.

They compute what transformers' do and take the same arguments. Two things differ: attention goes
through one SDPA call (transformers' GPT-J has none), and a block whose attention and MLP
read the same input and are added to the same residual enters the region once and leaves it once.
"""

import torch
from torch import Tensor, nn

from helpers.engine.attention import attend


def gptj_block(self: nn.Module, hidden_states: Tensor, **kwargs) -> tuple[Tensor, None]:
    """GPT-J's block: one norm, attention and MLP side by side, one sum. [batch, seq, hidden]."""
    inside = self.region.enter(self.ln_1(hidden_states))
    attended, _ = self.attn(inside, **kwargs)
    return self.region.leave(attended + self.mlp(inside)) + hidden_states, None


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
    query = _rotate_pairs(query, table, self.rotary_dim).transpose(1, 2)
    key = _rotate_pairs(key, table, self.rotary_dim).transpose(1, 2)
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    dropout = self.attn_dropout.p if self.training else 0.0
    attended = attend(query, key, value, attention_mask, dropout)
    return self.resid_dropout(self.out_proj(attended)), None


def _rotate_pairs(x: Tensor, table: Tensor, rotary_dim: int | None) -> Tensor:
    """Rotary position embedding on interleaved pairs, GPT-J's convention.

    Args:
        x: [batch, seq, heads, head_dim]; table: [batch or 1, seq, rotary_dim], sines then cosines.
        rotary_dim: dims that turn; the rest pass. All of them where None.

    Source: Su et al. 2021, RoFormer, section 3.4.2.
    """
    rotary_dim = rotary_dim or x.shape[-1]
    sin, cos = table.unsqueeze(2).chunk(2, dim=-1)
    turning, still = x.split([rotary_dim, x.shape[-1] - rotary_dim], dim=-1)
    even, odd = turning.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return torch.cat((turned.flatten(-2), still), dim=-1)
