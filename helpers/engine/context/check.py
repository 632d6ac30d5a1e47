"""Which models cp can split, said before anything starts."""

from typing import Any

from ..errors import UserError
from ..models.architecture import text_config
from ..models.families import kv_heads
from ..models.objectives import CAUSAL


def check_context(config: Any, cp: int, way: str, tp: int, task: str | None = None) -> None:
    """Raise a UserError if the sequence of a model with this configuration cannot be split so.

    Args:
        task: that its head is for, see models/objectives.py; None means a causal language model.
    """
    if task not in (None, CAUSAL.task):
        raise UserError(
            f"cp={cp} splits the rows of causal language models, not those of {task}: take tp, pp, "
            "dp_shard or dp_replicate"
        )
    if not getattr(config, "is_causal", True) or getattr(config, "is_encoder_decoder", False):
        raise UserError(f"cp={cp} splits causal attention, which {config.model_type} has not")
    if way != "ulysses":
        return
    if not getattr(config, "num_attention_heads", None):
        raise UserError(f"cp_attention=ulysses deals out heads, which {config.model_type} has not")
    heads, groups = config.num_attention_heads // tp, max(1, kv_heads(config) // tp)
    if not heads_for_all(heads, groups, cp):
        fits = [n for n in range(2, heads + 1) if heads_for_all(heads, groups, n)]
        instead = f"cp can be {', '.join(map(str, fits))} with it" if fits else "none would fit"
        raise UserError(
            f"cp_attention=ulysses gives every rank a head, and cp={cp} does not divide "
            f"{heads} heads{f' of a rank of tp={tp}' if tp > 1 else ''} and {groups} of keys: "
            f"{instead}; ring and gather work with any number of heads"
        )


def check_rotary(config: Any, length: int, plan: Any, packed: bool) -> None:
    """Raise a UserError if the model's rotary frequencies depend on how long a row is, and rows of
    `length` are split, padded or packed so that the model sees another length.

    Args:
        plan: a ParallelPlan.
        packed: do rows hold documents, whose positions start again?
    """
    longest = _same_until(config)
    padded = length + -length % plan.sequence_parts
    if longest is None or padded <= longest:
        return
    if plan.cp > 1 or packed or padded > length:
        how = "packed" if packed else f"split by cp={plan.cp}" if plan.cp > 1 else "padded"
        raise UserError(
            f"{config.model_type} turns positions by other frequencies in rows of more than "
            f"{longest} tokens, which rows of {length} that are {how} would hide: take rows of at "
            f"most {longest}, or whole ones by tp, pp, dp_shard or dp_replicate"
        )


def _same_until(config: Any) -> int | None:
    """The length of a row after which its rotary frequencies are others; None for no length.

    Source: transformers, modeling_rope_utils.py, dynamic_rope_update.
    """
    text = text_config(config)
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]
    of_kind = {
        "dynamic": lambda kind: text.max_position_embeddings,
        "longrope": lambda kind: kind["original_max_position_embeddings"],
    }
    lengths = [
        of_kind[kind["rope_type"]](kind) for kind in kinds if kind.get("rope_type") in of_kind
    ]
    return min(lengths, default=None)


def heads_for_all(heads: int, groups: int, ranks: int) -> bool:
    """Can every rank have as many of the heads, and those of keys that these use?"""
    return heads % ranks == 0 and 0 in (groups % ranks, ranks % groups)
