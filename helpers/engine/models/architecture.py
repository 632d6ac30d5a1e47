"""Which family a model is of: its record, or what its own modules say.

A model without a record is laid out all the same: ranks share its state, stages its blocks, and tp
splits of these what block_rules.py finds. Whether that gives the model's own loss is not believed
but tried: see the room admission.
"""

import itertools
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor, nn

from ..errors import UserError
from .block_rules import BlockRules, block_rules
from .families import RECORDS, Family

# what a class that asks transformers' attention interface says of itself
INTERFACE = ("_supports_sdpa", "_supports_attention_backend")


def family_of(model: nn.Module) -> Family:
    """What is known of a model's architecture: its record, or what its modules say."""
    family = getattr(model, "family", None)
    if family is not None:
        return family
    record = RECORDS.get(model.config.model_type)
    if record is None:
        attention, rest = rules_of(model)
        return discover(model, attention | rest)
    if has(model, record.head):
        return record
    return replace(record, head=None, top=None, whole_logits=True)  # as of a class that classifies


def candidates(model: nn.Module, tp: int, cp: int = 1) -> list[Family]:
    """Ways to lay the model out, the one that can do most first. A model without a record can be
    split less, and its loss taken of its own logits. So can every model whose layers are not split
    at all, with the class's own attention, unless ranks of cp share its sequences.

    Raises:
        UserError: cp splits sequences, and the model's attention is not known.
    """
    first, less = family_of(model), []
    if tp == 1:
        less = [discover(model)]
    elif not first.recorded:
        attention, rest = split_rules(model)
        first = discover(model, attention | rest)
        parts = (attention | replace(rest, experts=()), attention, rest)
        less = [way for part in parts if (way := discover(model, part)).splits]
    whole = [replace(way, whole_logits=True, head=None, top=None) for way in less]
    ways = [way for way in (first, *less, *whole) if way.attention or cp == 1]
    if not ways:
        raise UserError(
            f"{first.name} cannot be split by cp={cp}: its attention is not found by a record here "
            "or by its blocks' own modules; dp_shard and dp_replicate work with it"
        )
    return [way for place, way in enumerate(ways) if way not in ways[:place]]


def rules_of(model: nn.Module) -> tuple[BlockRules, BlockRules]:
    """What tp can split of a model's blocks: of attention, and of all else. An attention that does
    not ask transformers' interface stays whole: its dropout would be that of another rank's heads.
    """
    blocks = blocks_of(model)
    stack = model.get_submodule(blocks) if blocks else ()
    attention, rest = block_rules(stack, text_config(model.config))
    asks = any(getattr(model, name, False) for name in INTERFACE)
    return attention if asks else BlockRules(), rest


def split_rules(model: nn.Module) -> tuple[BlockRules, BlockRules]:
    """The same for several ranks of tp: without an attention that has parameters beside its layers
    and those of single heads, as weights of the difference of two, for what it computes of them
    needs all heads."""
    attention, rest = rules_of(model)
    path = attention.attention
    for block in model.get_submodule(blocks_of(model)) if path else ():
        own = block.get_submodule(path).named_parameters(path, False) if has(block, path) else ()
        if any(name not in attention.per_head for name, _ in own):
            return BlockRules(), rest
    return attention, rest


def has(module: nn.Module, path: str | None) -> bool:
    """Is there a module at that path?"""
    return path is not None and any(name == path for name, _ in module.named_modules())


def inside(path: str, module: str) -> bool:
    """Is the module at a path another, or in it?"""
    return bool(path) and (path == module or path.startswith(f"{module}."))


def discover(model: nn.Module, rules: BlockRules | None = None) -> Family:
    """The family of a model without a record, by its modules: `rules` say what tp splits.

    What cannot be found is None, and what needs it then refuses.

    Raises:
        UserError: its tokens have no table of vectors.
    """
    rules = rules or BlockRules()
    names = {id(module): path for path, module in model.named_modules()}
    try:
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:
        raise UserError(
            f"{model.config.model_type} has no one table of tokens' vectors, which every layout "
            "here begins with"
        ) from None
    blocks = blocks_of(model)
    plain_head = isinstance(head, nn.Linear)
    head_path = names.get(id(head)) if plain_head else None
    return Family(
        name=model.config.model_type,
        model_type=model.config.model_type,
        embedding=names.get(id(embedding)),
        blocks=blocks,
        norm=_last_norm(model, blocks) if blocks else None,
        head=head_path,
        top=_around(head_path, blocks),
        whole_logits=not plain_head,
        recorded=False,
        **{one.name: getattr(rules, one.name) for one in fields(rules)},
    )


def _around(head: str | None, blocks: str | None) -> str | None:
    """The module that turns hidden states into logits, where that is more than the head."""
    top, _, inner = (head or "").partition(".")
    return top if inner and not (blocks or "").startswith(f"{top}.") else None


def base_of(model: nn.Module, blocks: str | None = None) -> nn.Module:
    """The model without its head: what transformers calls so, or where that name is wrong, the part
    that has the tokens' table and the blocks; the model itself where it has no head.

    Args:
        blocks: the path of their list, of a model that has only a pipeline rank's.
    """
    named = getattr(model, "base_model", model)
    if named is not model:
        return named
    part, inner, _ = (blocks or blocks_of(model) or "").partition(".")
    around_all = inner and (_table(model) or f"{part}.").startswith(f"{part}.")
    return model.get_submodule(part) if around_all else model


def names_of(model: nn.Module) -> dict[Tensor, list[str]]:
    """Of each parameter all its names, the first of which is that of `named_parameters`."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return names


def tied_names(model: nn.Module) -> list[list[str]]:
    """The names of each parameter that the model has in several places."""
    return [names for names in names_of(model).values() if len(names) > 1]


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the language model."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def blocks_of(model: nn.Module) -> str | None:
    """The path of the list of blocks: of the lists as long as the model is deep, the largest of
    those nearest to the table of tokens' vectors. A tower for images may be as deep."""
    depth = getattr(text_config(model.config), "num_hidden_layers", None)
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == depth
    }
    table = _table(model)
    shared = {path: len(common_parent(path, table)) for path in lists}  # all begin as the table's
    nearest = [path for path, length in shared.items() if length == max(shared.values())]
    return max(nearest, key=lambda path: _numbers(lists[path]), default=None)


def _table(model: nn.Module) -> str:
    """The path of the table of tokens' vectors; none where transformers knows of no one table."""
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        return ""
    return next((path for path, module in model.named_modules() if module is table), "")


def common_parent(path: str, other: str) -> str:
    """The path of the smallest module that two paths go through; empty where it is the model."""
    pairs = zip(path.split("."), other.split("."))
    together = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return ".".join(name for name, _ in together)


def _numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _last_norm(model: nn.Module, blocks: str) -> str | None:
    """The path of the norm after the blocks; None where there is none, as in post-norm models."""
    parent = blocks.rpartition(".")[0]
    names = [name for name, _ in model.get_submodule(parent).named_children()]
    norms = [
        name
        for name in names
        if ("norm" in name.lower() or name.startswith("ln")) and "emb" not in name
    ]
    return f"{parent}.{norms[0]}" if len(norms) == 1 else None


@dataclass(frozen=True)
class Same:
    """A configuration. Two are alike if they say the same, and compute a mixture's experts by one
    of transformers' implementations, whose name what they say leaves out."""

    facts: str = field(repr=False)
    experts: str | None = field(repr=False)
    config: Any = field(compare=False, repr=False)

    @classmethod
    def of(cls, config: Any) -> "Same":
        experts = getattr(text_config(config), "_experts_implementation", None)
        return cls(config.to_json_string(use_diff=False), experts, config)
