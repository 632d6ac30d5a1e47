"""What files call a model's weights, and how they cut them: transformers' own mapping, asked.

    model.layers.0.mlp.experts.gate_up_proj     [experts, 2 * width, hidden] of the class is made of
    model.layers.0.mlp.experts.0.gate_proj.weight    [width, hidden] of the files, and of
    model.layers.0.mlp.experts.0.up_proj.weight      each expert's two

A weight may be called otherwise in files, be made of several of their tensors, or be a piece of
one. transformers knows of each architecture what becomes of what, when it loads and when it saves;
here the same is done for the part of a weight that a rank has.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..errors import UserError, named_reason
from ..models.architecture import text_config

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Recipe:
    """What a weight is made of.

    tensors: of the files, in their order; each with the pattern of the converter that it matches.
    converter: transformers' WeightConverter; None where the one tensor is the weight.
    first: the name of the first weight that the converter makes.
    config: of the model; shapes: of its weights, by name.
    """

    tensors: tuple[tuple[str, str], ...]
    converter: Any
    first: str
    config: Any
    shapes: dict[str, torch.Size]

    def convert(self, name: str, tensors: Iterable[Tensor]) -> Tensor:
        """The weight of that name, of these values in the order of the recipe's tensors."""
        converter = deepcopy(self.converter)
        for (stored, pattern), tensor in zip(self.tensors, tensors, strict=True):
            converter.add_tensor(self.first, stored, pattern, tensor)
        made = converter.convert(self.first, model=self, config=self.config)[name]
        return made[0] if isinstance(made, list) else made

    def get_parameter(self, name: str) -> Tensor:
        """What converters ask a model for: a weight's shape."""
        return torch.empty(self.shapes[name], device="meta")

    def rows(self, rows: slice) -> "Recipe | None":
        """How to make these rows of the weight alone, where each is made of tensors of its own, as
        an expert's is; else None."""
        from transformers.core_model_loading import Chunk, Concatenate, MergeModulelist

        first, *others = self.converter.operations
        inside = all(isinstance(op, Concatenate | Chunk) and op.dim > 0 for op in others)
        if not (isinstance(first, MergeModulelist) and first.dim == 0 and inside):
            return None
        by_pattern: dict[str, list[tuple[str, str]]] = {}
        for tensor in self.tensors:
            by_pattern.setdefault(tensor[1], []).append(tensor)
        chosen = tuple(tensor for of_one in by_pattern.values() for tensor in of_one[rows])
        return Recipe(chosen, self.converter, self.first, self.config, self.shapes)


def recipes(model: nn.Module, stored: Iterable[str]) -> dict[str, Recipe]:
    """Of each weight and stored buffer of a whole model that files have, what it is made of.

    Args:
        stored: the names of the files' tensors.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    mapping = get_model_conversion_mapping(model)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    converter_of = {pattern: one for one in converters for pattern in one.source_patterns}
    own, prefix = model.state_dict(), model.base_model_prefix
    shapes = {name: value.shape for name, value in own.items()}
    tensors: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(stored, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, own)
        if target not in own and name in own:
            target, pattern = name, None
        if target not in own:
            _check_left_out(model, target, name)
        tensors.setdefault(target, []).append((name, pattern or ""))
    found: dict[str, Recipe] = {}
    for target, made_of in tensors.items():
        converter = converter_of.get(made_of[0][1])
        made_of = made_of if converter else made_of[:1]
        recipe = Recipe(tuple(made_of), converter, target, model.config, shapes)
        first, *others = converter.target_patterns if converter else [""]
        for name in (target, *(target.replace(first, other) for other in others)):
            found[name] = recipe
    return {name: recipe for name, recipe in found.items() if name in own}


def _check_left_out(model: nn.Module, target: str, stored: str) -> None:
    """Raise a UserError if a layer that the model has would compute without a tensor of its files,
    as a bias that the configuration leaves out. Whole modules more, such as heads for another task,
    and masks beside no weight are in files in good order."""
    path = target.rpartition(".")[0]
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    try:
        layer = model.get_submodule(path)
    except AttributeError:  # no module of this model
        return
    computes = next(layer.parameters(recurse=False), None) is not None
    if computes and not any(re.search(one, stored) for one in ignored):
        raise UserError(
            f"the files hold {stored}, and this model's {path} computes without it: is the "
            "configuration beside them theirs?"
        )


class Made:
    """A weight that is made of several tensors of the files, or of a piece of one; it is indexed by
    slices, and what these need is read.

    Args:
        open: a tensor of the files by its name there, as safetensors gives it.
        folder: the name of the files' folder.
    """

    def __init__(self, name: str, recipe: Recipe, open: Callable[[str], Any], folder: str) -> None:
        self.name, self.recipe, self.open, self.folder = name, recipe, open, folder

    @property
    def shape(self) -> torch.Size:
        tensors = (self.open(stored) for stored, _ in self.recipe.tensors)
        blank = [torch.empty(shape_in_file(tensor), device="meta") for tensor in tensors]
        return self._convert(self.recipe, blank).shape

    def __getitem__(self, window: slice | tuple[slice, ...]) -> Tensor:
        rows, *others = window if isinstance(window, tuple) else (window,)
        of_rows = self.recipe.rows(rows)
        if of_rows is None or not of_rows.tensors:
            return self._read(self.recipe)[(rows, *others)]
        return self._read(of_rows)[(slice(None), *others)]

    def _read(self, recipe: Recipe) -> Tensor:
        read = {stored: self.open(stored)[:] for stored, _ in recipe.tensors}
        for stored, tensor in read.items():
            check_dtype(tensor, stored, self.folder)  # of several kinds would be made one
        return self._convert(recipe, list(read.values()))

    def _convert(self, recipe: Recipe, tensors: list[Tensor]) -> Tensor:
        try:
            return recipe.convert(self.name, tensors)
        except Exception as error:  # of transformers' converters, each its own
            raise UserError(
                f"{self.name} cannot be made of {recipe.tensors[0][0]} and its like in "
                f"{self.folder}: {named_reason(error)}"
            ) from None


def check_dtype(values: Tensor, name: str, folder: str) -> None:
    """Raise a UserError if these are no floating point of 16 bits or more: they would be taken for
    numbers that they do not stand for."""
    if values.dtype not in FLOATS:
        raise UserError(
            f"{name} in {folder} is of {str(values.dtype).removeprefix('torch.')}: "
            "weights are read as float64, float32, float16 or bfloat16"
        )


def shape_in_file(tensor: Any) -> list[int]:
    """Of a tensor, or of what safetensors has read nothing of yet."""
    return list(tensor.get_shape() if hasattr(tensor, "get_shape") else tensor.shape)


def as_in_files(
    model: nn.Module, weights: Iterable[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    """Named weights by the names, and cut in the way, of the files that transformers writes. What
    becomes one tensor waits until all of it is there."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, revert_weight_conversion

    blank = _blank(model)
    mapping = get_model_conversion_mapping(blank, add_legacy=False)
    converters = [c.reverse_transform() for c in mapping if isinstance(c, WeightConverter)][::-1]
    waiting: dict[str, dict[str, Tensor]] = {}
    patterns: dict[str, set[str]] = {}
    for name, value in weights:
        target, pattern, needed = _made_with(converters, name)
        waiting.setdefault(target, {})[name] = value
        patterns.setdefault(target, set()).add(pattern)
        if patterns[target] == needed:
            yield from revert_weight_conversion(blank, waiting.pop(target)).items()
    for several in waiting.values():
        yield from revert_weight_conversion(blank, several).items()


def class_of(model: nn.Module) -> type[nn.Module]:
    """The model's class, of which fully_shard makes another that transformers does not know."""
    return next(one for one in type(model).__mro__ if not issubclass(one, FSDPModule))


def _blank(model: nn.Module) -> nn.Module:
    """The model as its class makes it."""
    config = deepcopy(model.config)
    for part in (config, text_config(config)):
        part._attn_implementation_internal = None  # the class's own
    with torch.device("meta"):
        return class_of(model)._from_config(config)


def _made_with(converters: list[Any], name: str) -> tuple[str, str, set[str]]:
    """The tensor of the files that a weight becomes, as what of it, and all that it is made of."""
    for converter in converters:
        target, pattern = converter.rename_source_key(name)
        if pattern is not None:
            several = any("*" in one for one in converter.source_patterns)  # nobody says how many
            return target, pattern, set() if several else set(converter.source_patterns)
    return name, "", {""}
