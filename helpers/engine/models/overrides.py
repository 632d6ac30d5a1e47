"""Another number of layers, width or heads for a configuration, and what follows from them."""

import copy
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from ..errors import UserError, whole_reason
from .families import MLP_WIDTHS, kv_heads, own_of_layers

LAYER_LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers")
OF_LAYERS = ("layer", "block")  # in the name of a list that says something of each
SIZES = ("hidden_size", "num_attention_heads")
# as wide as the model, where they were
AS_WIDE = ("word_embed_proj_dim", "embedding_size", "lru_width", "pooler_hidden_size")


def override(config: Any, **values: Any) -> None:
    """Replace fields of a transformers configuration, in place; those that are None are left alone.

    With the width, the MLP's width goes in proportion. With the width or the heads, a head's size
    follows, and GPT-J's rotary part shrinks to it where it must. With the layers, what is said of
    each of them.

    Raises:
        UserError: the configuration has no such field or one of another type, the heads do not
            divide the width, heads and key-value heads do not fit, the model has no heads, or
            nothing says of what kind so many layers would be.
    """
    values = {name: value for name, value in values.items() if value is not None}
    resized = not values.keys().isdisjoint(SIZES)
    if resized and not all(getattr(config, name, None) for name in SIZES):
        raise UserError(f"{config.model_type} has no attention heads: its width stays as it is")
    before = {name: getattr(config, name, None) for name in SIZES} if resized else {}
    layers = getattr(config, "num_hidden_layers", None)
    for name, value in values.items():
        _set(config, name, value)
    if layers and config.num_hidden_layers != layers and config.num_hidden_layers > 0:
        _other_layers(config, layers)
    if not resized or {name: getattr(config, name) for name in SIZES} == before:
        return
    hidden, heads = config.hidden_size, config.num_attention_heads
    for key in MLP_WIDTHS:
        if getattr(config, key, None):
            setattr(config, key, getattr(config, key) * hidden // before["hidden_size"])
    for key in AS_WIDE:
        if getattr(config, key, None) == before["hidden_size"]:
            setattr(config, key, hidden)
    if heads < 1 or hidden % heads:
        raise UserError(f"heads={heads} does not divide hidden={hidden}: change one of them")
    if heads % kv_heads(config):
        raise UserError(
            f"heads={heads} is no multiple of the {kv_heads(config)} key-value heads that the "
            "model has"
        )
    head = hidden // heads
    if "head_dim" in vars(config):
        config.head_dim = head
    if getattr(config, "rotary_dim", None):
        config.rotary_dim = min(config.rotary_dim, head)
    if _rotated(config, head) % 2:
        raise UserError(
            f"hidden={hidden} makes {heads} heads of {head}, of which rotary positions turn "
            f"{_rotated(config, head)}: that must be even"
        )


def _other_layers(config: Any, before: int) -> None:
    """Let what is said of each of so many layers be said of the new number: of the first ones, or
    of more where all are of one kind.

    Raises:
        UserError: they are not, or transformers would read another configuration in its file.
    """
    layers, own = config.num_hidden_layers, own_of_layers(config)
    lists = {
        name: kinds
        for name, kinds in vars(config).items()
        if any(word in name for word in OF_LAYERS)
        and isinstance(kinds, list | tuple)
        and len(kinds) == before
    }
    for name, kinds in lists.items():
        if layers > before and any(kind != kinds[0] for kind in kinds):
            raise UserError(
                f"{config.model_type}'s {before} layers differ, and nothing says of what kind "
                f"{layers} would be: take at most {before}"
            )
        setattr(config, name, (list(kinds) + layers * list(kinds[:1]))[:layers])
        if name == "attention_layers":  # GPT-Neo's, which its file has in this form
            config.attention_types = [[config.attention_layers, 1]]
    if own:
        config.per_layer_config = {layer: fields for layer, fields in own.items() if layer < layers}
    _check_read_again(config, {*lists, "per_layer_config"})


def _check_read_again(config: Any, of_layers: set[str]) -> None:
    """Raise a UserError if transformers would not read these kinds of layers in its own file: some
    classes want the last one to be of a certain kind, or make it so."""
    told = config.to_dict()
    try:
        again = type(config).from_dict(copy.deepcopy(told)).to_dict()
    except Exception as error:  # huggingface_hub's own kind, in several lines, about its cause
        reason = whole_reason(error.__cause__ or error)
    else:
        changed = sorted(name for name in of_layers if again.get(name) != told.get(name))
        reason = f"it would change {', '.join(changed)}" if changed else None
    if reason is not None:
        raise UserError(
            f"transformers takes no {config.model_type} of {config.num_hidden_layers} layers "
            f"({reason}): take another number"
        )


def _set(config: Any, name: str, value: Any) -> None:
    own = config.attribute_map.get(name, name)  # by another name transformers checks no type
    known = _settable(config)
    if own not in known:
        near = get_close_matches(name, sorted(known), n=3)
        instead = f": did you mean {' or '.join(near)}?" if near else ""
        raise UserError(f"a configuration of {config.model_type} has no {name!r:.40}{instead}")
    try:
        setattr(config, own, value)
    except Exception as error:  # huggingface_hub's own kind, in several lines, about its cause
        reason = whole_reason(error.__cause__ or error)
        raise UserError(f"{config.model_type} does not take this {name}: {reason}") from None


def _settable(config: Any) -> set[str]:
    """The names that a value of a configuration can be set by."""
    known = {*vars(config), *config.attribute_map}
    known |= {one.name for one in fields(config)} if is_dataclass(config) else set()
    for kind in type(config).__mro__:
        known |= {name for name, one in vars(kind).items() if getattr(one, "fset", None)}
    return {name for name in known if not name.startswith("_")}


def _rotated(config: Any, head: int) -> int:
    """How much of a head of that width rotary positions turn."""
    if getattr(config, "rotary_dim", None):
        return config.rotary_dim
    rope = getattr(config, "rope_parameters", None)
    if not rope or getattr(config, "alibi", False):
        return 0
    return int(head * rope.get("partial_rotary_factor", 1.0))


def fewer_layers(config: Any, each: int = 1) -> None:
    """At least two, and `each` of every kind that the model has, in place; of a model whose kinds
    follow from a layer's number, as many of its first layers as have them."""
    lists = {name: list(getattr(config, name, None) or ()) for name in LAYER_LISTS}
    names, own = [name for name, values in lists.items() if values], own_of_layers(config)
    owns = [[repr(own.get(layer)) for layer in range(config.num_hidden_layers)]] if own else []
    kinds = list(zip(*(lists[name] for name in names), *owns))
    chosen = list(dict.fromkeys(kinds))
    layers = min(max(2, len(chosen)) * each, config.num_hidden_layers)
    if not vars(config).keys() >= {*names}:
        config.num_hidden_layers = max(layers, _first_with(kinds, each))
        return
    pattern = (chosen * layers)[:layers]
    for place, name in enumerate(names):
        setattr(config, name, [kind[place] for kind in pattern])
    config.num_hidden_layers = layers
    if own:
        firsts = enumerate(map(kinds.index, pattern))
        config.per_layer_config = {layer: own[first] for layer, first in firsts if first in own}


def _first_with(kinds: list[tuple], each: int) -> int:
    """How many of the first layers have `each` of every kind, or as many as there are."""
    few = {kind: min(each, kinds.count(kind)) for kind in kinds}
    seen: list[tuple] = []
    for kind in kinds:
        if all(seen.count(one) >= count for one, count in few.items()):
            break
        seen.append(kind)
    return len(seen)
