"""Rotary position embedding in its two conventions: GPT-J turns neighbours, the others two halves.

Source: Su et al. 2021, RoFormer, section 3.4.2.
"""

import torch
from torch import Tensor


def rotate_pairs(x: Tensor, table: Tensor, rotary_dim: int | None) -> Tensor:
    """Rotary position embedding on interleaved pairs, GPT-J's convention.

    Args:
        x: [batch, seq, heads, head_dim]; table: [batch or 1, seq, rotary_dim], sines then cosines.
        rotary_dim: dims that turn; the rest pass. All of them where None.
    """
    rotary_dim = rotary_dim or x.shape[-1]
    sin, cos = table.unsqueeze(2).chunk(2, dim=-1)
    turning, still = x.split([rotary_dim, x.shape[-1] - rotary_dim], dim=-1)
    even, odd = turning.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return torch.cat((turned.flatten(-2), still), dim=-1)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on dims half a head apart. x: [batch, heads, seq, head_dim]."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
