"""The kind of a model: its class and configuration, and whether it is still as they make it.

What is tried is a small copy that the class makes. Of a model that somebody changed afterwards, a
module replaced or a forward patched, the copy says nothing: nothing of it is then split or
computed by the engine's own forwards, and what splits every model is refused.
"""

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from ..errors import UserError, named_reason
from ..models.architecture import Same, blocks_of, text_config


@dataclass(frozen=True)
class Kind:
    """A model's class and configuration. Two are alike if they say the same.

    attention: transformers' name of its implementation, which no configuration tells.
    changed: what somebody changed of the model since, in words; empty where nothing is.
    """

    model_class: type[nn.Module]
    attention: str | None
    said: Same
    changed: str = ""

    @property
    def config(self) -> Any:
        return self.said.config


def kind_of(model: nn.Module) -> Kind:
    attention = text_config(model.config)._attn_implementation
    kind = Kind(type(model), attention, Same.of(model.config))
    return replace(kind, changed=next(_changes(model, made_by(kind)), ""))


@lru_cache(maxsize=16)
def made_by(kind: Kind) -> nn.Module:
    """What the class makes of the configuration, without memory.

    Raises:
        UserError: it makes nothing of a configuration alone.
    """
    try:
        return without_memory(kind.model_class, kind.config)
    except Exception as error:  # each class has its own complaints
        raise UserError(
            f"{kind.model_class.__name__} cannot be made of this configuration alone "
            f"({named_reason(error)}), as the small copy is that a layout is tried on: let its "
            "__init__ take a configuration that says all"
        ) from None


def without_memory(model_class: type[nn.Module], config: Any) -> nn.Module:
    with torch.device("meta"):
        return model_class._from_config(copy.deepcopy(config))


def _changes(model: nn.Module, made: nn.Module) -> Iterator[str]:
    """What is not as the class makes it, in words."""
    own, theirs = _modules(model), _modules(made)
    for path in dict.fromkeys((*own, *theirs)):
        kind, expected = (_class_of(each.get(path)) for each in (own, theirs))
        if kind is not expected:
            yield f"{path} is {_words(kind)} where {type(made).__name__} makes {_words(expected)}"
        elif patched := _patched(own[path]):
            yield f"{patched} of {path} was replaced"
        elif other := other_number(own[path], theirs[path]):
            yield f"{other} of {path or 'the model'} was set to another value"
    sizes, made_sizes = _sizes(model), _sizes(made)
    for name in dict.fromkeys((*sizes, *made_sizes)):
        if sizes.get(name) != made_sizes.get(name) and not _is_parametrized(name, own):
            yield f"{name} is {sizes.get(name)} where the class has {made_sizes.get(name)}"


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """By their paths, without what keeps a parametrized weight."""
    named = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in named if "parametrizations" not in path}


def _class_of(module: nn.Module | None) -> type[nn.Module] | None:
    return None if module is None else type_before_parametrizations(module)


def _words(kind: type[nn.Module] | None) -> str:
    return "nothing" if kind is None else f"a {kind.__name__}"


def _patched(module: nn.Module) -> str:
    """A method that the module itself has in place of its class's."""
    own = (name for name, value in vars(module).items() if callable(value))
    return next((name for name in own if callable(getattr(type(module), name, None))), "")


def other_number(own: nn.Module, made: nn.Module) -> str:
    """A number that a module's forward may read and that is another; no rate of dropout."""
    if isinstance(own, nn.Dropout):
        return ""
    for name, value in vars(own).items():
        theirs = getattr(made, name, None)
        if isinstance(theirs, float) and "drop" not in name and value != theirs:
            return name
    return ""


def _sizes(model: nn.Module) -> dict[str, list[int]]:
    named = model.named_parameters(remove_duplicate=False)
    return {name: list(p.shape) for name, p in named if "parametrizations" not in name}


def _is_parametrized(name: str, modules: dict[str, nn.Module]) -> bool:
    return is_parametrized(modules.get(name.rpartition(".")[0], nn.Module()))


def kinds_of_blocks(model: nn.Module) -> set[frozenset[str]]:
    """Of each kind of block the names of its parameters and its modules' classes, of a list of
    experts one's."""
    path = blocks_of(model)
    return {
        frozenset(
            re.sub(r"\.\d+\b", ".0", f"{name} {kind}")
            for name, kind in itertools.chain(
                ((name, "") for name, _ in block.named_parameters()),
                ((name, type(module).__qualname__) for name, module in block.named_modules()),
            )
        )
        for block in (model.get_submodule(path).children() if path else ())
    }
