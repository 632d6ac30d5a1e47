"""Sinks: a number for each head that takes part in its softmax and gives nothing.

    weights = softmax([sink, scores]) without its first column

No fused kernel knows of them, but each does one token more: before the first token stands one that
every query sees, of which a head's score is its sink and whose value is zero.

Sources: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, section 3;
OpenAI 2025, gpt-oss-120b and gpt-oss-20b Model Card, section 2.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def before_first(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Arguments of an attention that has one token more, whose result at it means nothing.

    Args:
        query, key, value: [batch, heads, seq, width]; key and value may have fewer heads.
        mask: additive or boolean, or None; for the new token it lets all through.
        sinks: [heads].
        scale: of the scores.

    Returns:
        The same with a token in front. Query and key are one wider, where a head's query has its
        sink and the new key alone has a one.
    """
    own = (sinks / scale).to(query.dtype).view(1, -1, 1, 1).expand(*query.shape[:3], 1)
    query = F.pad(torch.cat((query, own), 3), (0, 0, 1, 0))
    first = F.pad(key.new_ones(1), (key.shape[3], 0)).expand(*key.shape[:2], 1, -1)
    key = torch.cat((first, F.pad(key, (0, 1))), 2)
    value = F.pad(value, (0, 0, 1, 0))
    if mask is not None:
        mask = F.pad(mask, (1, 0, 1, 0), value=mask.dtype == torch.bool)
    return query, key, value, mask
