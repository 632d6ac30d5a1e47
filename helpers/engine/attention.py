"""One attention call for every family."""

import torch.nn.functional as F
from torch import Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention, causal where no mask is given.

    Args:
        query, key, value: [batch, heads, seq, head_dim]; key and value may have fewer heads.
        mask: additive or boolean, broadcastable to [batch, heads, seq, keys]; None means causal.
        dropout: probability, 0 outside training.
        scale: of the scores; 1/sqrt(head_dim) where None.

    Returns:
        [batch, seq, heads * head_dim].
    """
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None and query.shape[2] > 1,
        scale=scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return out.transpose(1, 2).flatten(2)
