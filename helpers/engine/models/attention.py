"""One attention call for every family."""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError
from .sinks import before_first

NAME = "helpers"  # under which transformers finds our attention
# what transformers hands on beside: already in the mask, of caches, of kernels of other names, or
# for others than attention
NOT_FOR_HERE = {
    "sliding_window",
    "position_ids",
    "cache_position",
    "use_cache",
    "deterministic",
    "output_hidden_states",
    "output_router_logits",
}


def attend(
    boundary: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
    causal: bool = True,
    softcap: float | None = None,
    window: int | None = None,
    key_bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention over this rank's heads, causal where no mask is given.

    Args:
        boundary: the tensor-parallel boundary, whose own random stream dropout draws from. Where
            it has a context with a part of the rows, attention is over the whole sequence; where it
            has documents, inside each of them. `mask` is then not looked at, and `window` and
            `key_bias` are.
        query, key, value: [batch, heads, seq, head_dim]; key and value may have fewer heads, and
            value another width.
        mask: additive or boolean, broadcastable to [batch, heads, seq, keys]; None means causal.
        dropout: probability, 0 outside training.
        scale: of the scores; 1/sqrt(head_dim) where None.
        causal: without a mask, does a token see only what came before it?
        softcap: bounds the scores to softcap tanh(score / softcap); none of torch's kernels does.
        window: keys that a query sees at most, which a mask says too.
        key_bias: [heads, seq], added to the scores by the key's place, which a mask says too.
        sinks: [heads], see sinks.py.

    Returns:
        [batch, seq, heads, width of a value].

    Raises:
        UserError: both a softcap and sinks, of which nobody says whether they are capped.
    """
    if softcap is not None and sinks is not None:
        raise UserError("attention with a softcap and sinks at once is not computed here")
    how = How(dropout, scale, causal, softcap, sinks)
    if boundary.context is not None and boundary.context.part is not None:
        out = _over_context(boundary, query, key, value, how, window, key_bias)
    elif boundary.documents is not None:
        out = _over_documents(boundary, query, key, value, how, window, key_bias)
    else:
        # by a branch: `> 1` of a compiled shape is a symbol
        if mask is not None or query.shape[2] == 1:
            how = how._replace(causal=False)
        with _own_stream(boundary, how):
            out = _whole(query, key, value, mask, how)
    return out.transpose(1, 2).contiguous()  # some classes take a view of it


class How(NamedTuple):
    """How scores are made and become weights, as the arguments of `attend` say."""

    dropout: float
    scale: float | None
    causal: bool
    softcap: float | None
    sinks: Tensor | None


def _own_stream(boundary: Any, how: How) -> AbstractContextManager:
    """In which dropout draws other numbers on each rank of tp, whose heads are others."""
    return boundary.own_stream(True) if how.dropout > 0 else nullcontext()


def _whole(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: How) -> Tensor:
    """[batch, heads, seq, width of a value]."""
    if how.sinks is not None:
        how = how._replace(scale=how.scale or query.shape[3] ** -0.5)
        longer = before_first(query, key, value, mask, how.sinks, how.scale)
        return _whole(*longer, how._replace(sinks=None))[:, :, 1:]
    if value.shape[3] < query.shape[3]:  # the fused kernels are for one width
        value, width = F.pad(value, (0, query.shape[3] - value.shape[3])), value.shape[3]
        return _whole(query, key, value, mask, how)[..., :width]
    if how.softcap is not None:
        return _capped(query, key, value, mask, how)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=how.dropout,
        is_causal=how.causal,
        scale=how.scale,
        enable_gqa=key.shape[1] != query.shape[1],
    )


def _over_documents(
    boundary: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    how: How,
    window: int | None,
    key_bias: Tensor | None,
) -> Tensor:
    """The same inside the documents of packed rows."""
    if not how.causal:
        raise UserError("packed rows have causal attention, and this model asks for another kind")

    def attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _whole(q, k, v, mask, how._replace(causal=mask is None))

    with _own_stream(boundary, how):
        return boundary.by_documents(attend_one, query, key, value, window, key_bias)


def _over_context(
    boundary: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    how: How,
    window: int | None,
    key_bias: Tensor | None,
) -> Tensor:
    """The same over the ranks of cp."""
    if not how.causal:
        raise UserError("cp splits causal attention, and this model asks for another kind")
    with _own_stream(boundary, how):
        seed = int(torch.randint(2**62, ())) if how.dropout > 0 else 0
    return boundary.context.attend(
        query,
        key,
        value,
        how.sinks,
        scale=how.scale or query.shape[3] ** -0.5,
        softcap=how.softcap,
        window=window,
        key_bias=key_bias,
        dropout=how.dropout,
        seed=seed,
    )


def _capped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, how: How) -> Tensor:
    """The formula itself, with the scores in memory."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * (how.scale or query.shape[3] ** -0.5)
    scores = how.softcap * (scores / how.softcap).tanh()
    if how.causal:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    # in float32 whatever the dtype, as in the classes that have a softcap
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return F.dropout(weights, how.dropout) @ value


def use(model: nn.Module) -> None:
    """Let transformers' attention interface call `attend` in this model; the configuration that it
    was made of is left as it was, for others may be made of it."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, _interface)
    AttentionMaskInterface.register(NAME, _mask)
    own: dict[int, Any] = {}  # the copy of each part, by the id of the part
    copy.deepcopy(model.config, own)
    for module in model.modules():
        if id(getattr(module, "config", None)) in own:
            module.config = own[id(module.config)]
    model.config._attn_implementation = NAME


def _mask(*sizes: int, config: Any, allow_is_causal_skip: bool = True, **options: Any) -> Any:
    """transformers' mask, or None where attention is causal by itself. Falcon's class always asks
    for one, to add ALiBi to it; most Falcons have none, and no fused kernel takes a mask."""
    from transformers.masking_utils import sdpa_mask

    no_alibi = config.model_type == "falcon" and not config.alibi
    skip = allow_is_causal_skip or no_alibi
    return sdpa_mask(*sizes, config=config, allow_is_causal_skip=skip, **options)


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`attend` with the signature that transformers calls.

    Raises:
        UserError: an argument is given that means something here and is not computed.
    """
    if indices is not None:
        _check_whole_rows(module)
        attention_mask = _chosen(attention_mask, indices, key.shape[2])
    for name, value_of in kwargs.items():
        if name not in NOT_FOR_HERE and value_of is not None and value_of is not False:
            raise UserError(
                f"{type(module).__name__} asks attention for {name}, which is not computed here"
            )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out = attend(
        module.boundary,
        query,
        key,
        value,
        attention_mask,
        dropout,
        scaling,
        causal=causal,
        softcap=softcap,
        window=kwargs.get("sliding_window"),
        sinks=module.boundary.part_of(s_aux),
    )
    return out, None


def _check_whole_rows(module: nn.Module) -> None:
    """Raise a UserError if keys that an index chooses are not all at hand, or of one document."""
    boundary = module.boundary
    if boundary.documents is not None or (boundary.context and boundary.context.part):
        raise UserError(
            f"{type(module).__name__} chooses keys by their places in the row, which is neither "
            "packed nor split by cp then"
        )


def _chosen(mask: Tensor, indices: Tensor, keys: int) -> Tensor:
    """The mask, [batch, 1, seq, keys], where it lets through and an index of keys, [batch, seq,
    chosen], has the key."""
    chosen = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    chosen = chosen.scatter(2, indices.long(), True).unsqueeze(1)
    return both(chosen, mask)


def both(allowed: Tensor, mask: Tensor | None) -> Tensor:
    """A boolean mask and another, boolean or additive, in one."""
    if mask is None:
        return allowed
    if mask.dtype == torch.bool:
        return allowed & mask
    return mask.masked_fill(~allowed, torch.finfo(mask.dtype).min)
