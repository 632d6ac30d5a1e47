"""One attention call for every family."""

from contextlib import nullcontext
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

NAME = "helpers"  # under which transformers finds our attention


def attend(
    boundary: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention over this rank's heads, causal where no mask is given.

    Args:
        boundary: the tensor-parallel boundary, whose own random stream dropout draws from.
        query, key, value: [batch, heads, seq, head_dim]; key and value may have fewer heads.
        mask: additive or boolean, broadcastable to [batch, heads, seq, keys]; None means causal.
        dropout: probability, 0 outside training.
        scale: of the scores; 1/sqrt(head_dim) where None.

    Returns:
        [batch, seq, heads, head_dim].
    """
    causal = mask is None
    if causal and query.shape[2] == 1:  # by a branch: of a compiled shape `> 1` would be a symbol
        causal = False
    with boundary.own_stream(True) if dropout > 0 else nullcontext():
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )
    return out.transpose(1, 2)


def install() -> str:
    """Make `attend` known to transformers' attention interface; returns the name to ask for."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, _interface)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`attend` with the signature that transformers calls."""
    return attend(module.boundary, query, key, value, attention_mask, dropout, scaling), None
