"""The linear layers of a model's blocks: which can be held in 4 bits, beside which adapters stand,
and what peft is told of these."""

import copy
import inspect
import re
from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import UserError, need
from ..models.architecture import family_of, tied_names

PREFIX = "base_model.model."  # of every name in peft's files
BLOCK = re.compile(r"\.(\d+)\.")  # the number of a name's block


class Places(NamedTuple):
    """Of the whole model, whatever of it is here.

    paths: the linear layers.
    targets: what peft is told of those beside which adapters stand.
    modules: all modules' paths.
    """

    paths: list[str]
    targets: list[str]
    modules: list[str]


def places_of(model: nn.Module) -> Places:
    """Raises a UserError if there is no layer beside which an adapter could stand."""
    paths = linear_paths(model)
    kinds = {BLOCK.sub(".*.", path): path for path in paths}
    kept = {kind for kind, path in kinds.items() if _stays(model, path)}
    beside = [path for path in paths if BLOCK.sub(".*.", path) in kept]
    if not beside:
        raise UserError(
            f"{model.config.model_type} has no linear layer beside which peft puts an adapter"
        )
    return Places(paths, _targets(model, beside), paths_in(model))


def paths_in(model: nn.Module) -> list[str]:
    """Of all modules that are here."""
    return [path for path, _ in model.named_modules() if path]


def reached(config: Any, paths: Iterable[str]) -> list[str]:
    """Those of the paths whose modules a configuration of peft's targets."""
    from peft.tuners.tuners_utils import check_target_module_exists

    if config.target_modules is None:  # peft has a table of types
        return []
    config = copy.copy(config)
    config.modules_to_save = None  # which head.py trains
    return [path for path in paths if check_target_module_exists(config, path)]


def linear_paths(model: nn.Module) -> list[str]:
    """The linear layers of all blocks that are here: fused or single query, key and value, the
    projection after attention, the MLP's. Not the head, nor what a record says is bypassed."""
    family = family_of(model)
    if family.blocks is None:
        raise UserError(f"{family.name} has no list of blocks whose matrices could be held so")
    bypassed = family.bypassed(model.config)
    recorded = [path for path in family.split_layers if path not in bypassed]
    return [
        f"{family.blocks}.{number}.{path}"
        for number, block in model.get_submodule(family.blocks).named_children()
        for path in (recorded if family.recorded else _linears(block))
    ]


def check_apart(model: nn.Module, paths: Container[str], why: str) -> None:
    """Raise a UserError, which says why, if two of these layers have one matrix."""
    for names in tied_names(model):
        owners = [name.removesuffix(".weight").removesuffix(".base_layer") for name in names]
        if len(shared := [path for path in owners if path in paths]) > 1:
            raise UserError(f"{shared[0]} and {shared[1]} have one matrix, {why}")


def is_transposed(layer: nn.Module) -> bool:
    """Is the layer, or was it before it was quantized, transformers' Conv1D: a weight [in, out]?"""
    return getattr(layer, "transposed", type(layer).__name__ == "Conv1D")


def _linears(block: nn.Module) -> list[str]:
    """The linear layers of a block without a record: those that compute W x + b and no more, as a
    router does not, and whose weight their module leaves to them. Kernels of state spaces take
    weights as they are, and some classes ask one for its dtype."""
    return [
        path
        for path, module in block.named_modules()
        if _is_linear(module) and not _reads_weight(block, path)
    ]


def _is_linear(module: nn.Module) -> bool:
    quantized = hasattr(module, "quant_state")
    return quantized or is_transposed(module) or type(module).forward is nn.Linear.forward


def _reads_weight(block: nn.Module, path: str) -> bool:
    """Does the module that a layer is in read the layer's weight itself?"""
    around, _, leaf = path.rpartition(".")
    source = _source(type(block.get_submodule(around)))
    return re.search(rf"\bself\.{leaf}\.weight\b", source) is not None


@lru_cache(maxsize=1024)
def _source(module_class: type) -> str:
    try:
        return inspect.getsource(module_class)
    except (OSError, TypeError):  # a class that was made in no file
        return ""


def _stays(model: nn.Module, path: str) -> bool:
    """Does an adapter of this layer stay there when peft reads it? Of some types peft takes it for
    one of an older class's experts, or looks for it under another name."""
    peft = need("peft", "qlora")
    try:
        from peft.utils import transformers_weight_conversion as conversion
    except ImportError:  # a peft that converts nothing
        return True
    config, name = peft.LoraConfig(target_modules=[path]), f"{PREFIX}{path}.lora_A.weight"
    try:
        conversion.convert_peft_config_for_transformers(config, model, None)
        found = conversion.convert_peft_adapter_state_dict_for_transformers(
            model, config, {name: torch.empty(1, 1)}
        )
    except Exception:  # whatever keeps peft from it
        return False
    return set(config.target_modules) == {path} and set(found) == {name}


def _targets(model: nn.Module, paths: list[str]) -> list[str]:
    """The layers' last names; where other modules have these, too, their paths in a block."""
    stack, modules = f"{family_of(model).blocks}.", {path for path, _ in model.named_modules()}
    last_names = {path.rpartition(".")[2] for path in paths}
    in_block = {path.removeprefix(stack).partition(".")[2] for path in paths}
    for names in (last_names, in_block):
        if {path for path in modules if _is_named(path, names)} == set(paths):
            return sorted(names)
    return sorted(paths)


def _is_named(path: str, names: set[str]) -> bool:
    """Does peft find the module by one of these names?"""
    return path in names or any(path.endswith(f".{name}") for name in names)
