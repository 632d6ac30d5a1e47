"""What a folder says beside its weights: the model's configuration, how it generates, and the code
of a class that came with code."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import UserError, need, reason
from .names_in_files import class_of

GENERATION = "generation_config.json"


def generate_as(model: nn.Module, folder: Path) -> None:
    """Give a model what its folder says of how to generate, as transformers does."""
    transformers = need("transformers", "hf")
    if not model.can_generate() or not (folder / GENERATION).is_file():
        return
    try:
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    except Exception as error:  # of what is no such configuration
        raise UserError(f"{GENERATION} in {folder.name} cannot be read: {reason(error)}") from None


def write_configurations(model: nn.Module, folder: Path, dtype: torch.dtype) -> None:
    """Write all of them.

    Args:
        dtype: of the weights in the folder.
    """
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.architectures = [getattr(model, "class_name", type(model).__name__)]
    vars(config).pop("quantization_config", None)  # of the source's files: these hold numbers
    if not _write_code(model, folder, config):
        vars(config).pop("auto_map", None)  # of code that is not beside it
    config.save_pretrained(folder)
    if model.can_generate():  # as it is: its save_pretrained refuses what published models say
        generation = model.generation_config
        generation.to_json_file(folder / GENERATION, keys_to_pop=["compile_config"])


def _write_code(model: nn.Module, folder: Path, config: Any) -> bool:
    """Copy the files that a class is read from with trust_remote_code, and let the configuration
    name them, as transformers does. Is there such code?"""
    from transformers.dynamic_module_utils import custom_object_save

    if model._auto_class is None:
        return False
    own_class = class_of(model)
    custom_object_save(own_class.__new__(own_class), folder, config)
    return True
