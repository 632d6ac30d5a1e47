"""Which degrees of tp and ep a model allows, by its configuration: before there is a model."""

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import nn

from ..context.check import heads_for_all
from ..errors import UserError
from ..models.architecture import Same, split_rules, text_config
from ..models.block_rules import BlockRules, expert_cuts
from ..models.families import RECORDS, kv_heads, mlp_width
from ..models.objectives import check_known
from ..models.overrides import fewer_layers

Answer = TypeVar("Answer")


def check_tensor_degree(config: Any, tp: int) -> None:
    """Raise a UserError if the model's heads or MLP width cannot be split over `tp` ranks."""
    record, text = RECORDS.get(config.model_type), text_config(config)
    rules, widths = (record, ()) if record else _rules_by(Same.of(config))
    name = record.name if record else config.model_type
    if not (rules.row or rules.experts):
        known = ", ".join(one.name for one in RECORDS.values())
        raise UserError(
            f"{name} cannot be split by tp: there is no record of it here, and its blocks have "
            "neither queries, keys and values nor an MLP or experts that it could be done by; "
            "dp_shard and "
            f"dp_replicate work with it (tp with {known} and models like Llama)"
        )
    if rules.attention:
        _check_heads(text, tp, name)
    width = mlp_width(text)
    if (record or len(rules.row) > bool(rules.attention)) and width % tp:
        raise UserError(f"tp={tp} does not divide {name}'s MLP width {width}")
    for width in widths:
        if width % tp:
            raise UserError(f"tp={tp} does not divide the width {width} of {name}'s experts")


def check_experts(config: Any) -> None:
    """Raise a UserError if a model has no experts that ranks could deal out among them."""
    if config.model_type in RECORDS or not _has_experts(Same.of(config)):
        raise UserError(f"{config.model_type} has no experts that ep could deal out: leave it out")


def _check_heads(config: Any, tp: int, name: str) -> None:
    heads, groups = config.num_attention_heads, kv_heads(config)
    fits = [n for n in range(2, heads + 1) if heads_for_all(heads, groups, n)]
    kinds = ", ".join(map(str, fits)) if len(fits) > 1 else f"only {(fits or [1])[0]}"
    if heads % tp:
        raise UserError(
            f"tp={tp} does not divide {name}'s {heads} attention heads; tp can be {kinds} here, "
            "and data and pipeline parallelism work with any number of heads"
        )
    if not heads_for_all(heads, groups, tp):
        raise UserError(
            f"tp={tp} and {name}'s {groups} key-value heads do not divide each other; "
            f"tp can be {kinds} here"
        )


@lru_cache(maxsize=256)
def _rules_by(same: Same) -> tuple[BlockRules, tuple[int, ...]]:
    """What tp can split, and the widths of experts: found in a model of few layers."""

    def ask(model: nn.Module) -> tuple[BlockRules, tuple[int, ...]]:
        attention, rest = split_rules(model)
        return attention | rest, expert_widths(model)

    return _of_a_model(same.config, ask, shallow=True) or (BlockRules(), ())


@lru_cache(maxsize=256)
def _has_experts(same: Same) -> bool:
    """In any of its blocks, of which the first may have none."""
    return bool(_of_a_model(same.config, expert_widths))


def _of_a_model(
    config: Any, ask: Callable[[nn.Module], Answer], shallow: bool = False
) -> Answer | None:
    """What is found in a model of the configuration, without memory; None where none can be made.

    Args:
        shallow: make it of few layers.
    """
    import transformers

    for auto in (transformers.AutoModel, transformers.AutoModelForCausalLM):
        own = copy.deepcopy(config)
        with suppress(Exception), torch.device("meta"):  # each class has its own complaints
            if shallow:
                fewer_layers(text_config(own))
            return ask(auto.from_config(own, trust_remote_code=False))
    check_known(config)
    return None


def expert_widths(model: nn.Module) -> tuple[int, ...]:
    """Widths of the middles of a model's experts, each once."""
    widths = {
        getattr(module, name).shape[cut.dim] // cut.parts
        for module in model.modules()
        for name, cut in expert_cuts(module).items()
        if cut.dim is not None
    }
    return tuple(sorted(widths))
