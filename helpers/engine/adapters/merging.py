"""Adapters merged into the weights that they stand beside, so that transformers needs nothing else.

    W + alpha / rank * B A      of W [out, in], in float32, and rounded once

Source: Hu et al. 2021, LoRA, section 4.1.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..files import weights
from ..files.beside_weights import write_configurations
from ..ranks.agreeing import is_first, on_all_ranks
from .linear_layers import check_apart, is_transposed
from .lora import HALVES, NAME, adapted, halves
from .nf4 import dequantize


@torch.no_grad()
def merged_weights(
    model: nn.Module, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Names and values of a model without adapters and 4-bit layers that computes the same, one at
    a time. Every rank must iterate.

    To the weights that the adapters were trained beside (W4, not what it was made from) their
    product is added in float32, and the sum rounded once.

    Args:
        dtype: of the values; the one that the model computes in unless given.

    Raises:
        UserError: layers with adapters of their own have one matrix, on any rank.
    """
    adapters = dict(adapted(model))
    why = "which would be two with their adapters in it: keep them beside"
    on_all_ranks(partial(check_apart, model, adapters, why))
    own: dict[str, str] = {}  # name without adapters -> name in this model
    facts: dict[str, tuple[torch.Size, torch.dtype]] = {}
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        if any(f".{half}." in name for half in HALVES):
            continue
        state = _quant_state(model.get_submodule(path), leaf)
        turned = state is not None and is_transposed(model.get_submodule(path))
        shape = parameter.shape if state is None else state.shape[:: -1 if turned else 1]
        plain = f"{path.removesuffix('.base_layer')}.{leaf}"
        own[plain] = name
        facts[plain] = (shape, dtype or (parameter.dtype if state is None else state.dtype))

    def merged(plain: str) -> Tensor:
        return _merged(model, own[plain], adapters, facts[plain][1])

    yield from weights.over_stages(model, facts, merged)
    yield from weights.whole_buffers(model)


def _quant_state(layer: nn.Module, leaf: str) -> Any:
    """bitsandbytes' state of a layer's 4-bit matrix; None for what is not in 4 bits."""
    return getattr(layer, "quant_state", None) if leaf == "weight" else None


def _merged(
    model: nn.Module, name: str, adapters: dict[str, nn.Module], dtype: torch.dtype
) -> Tensor:
    path, _, leaf = name.rpartition(".")
    layer, plain = model.get_submodule(path), path.removesuffix(".base_layer")
    codes = weights.whole(model.get_parameter(name))
    value = codes if _quant_state(layer, leaf) is None else dequantize(layer, codes)
    if leaf != "weight" or plain not in adapters:
        return value.to(dtype)
    product = _product(adapters[plain])
    return (value.float() + (product.t() if is_transposed(layer) else product)).to(dtype)


def _product(layer: nn.Module) -> Tensor:
    """What an adapter adds to its layer's matrix, [out, in] in float32."""
    first, second = (weights.whole(half).float() for half in halves(layer))
    return second @ first * layer.scaling[NAME]


def save_merged(model: nn.Module, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a Hugging Face folder that transformers loads with nothing else: the adapters merged
    into the weights, which are no longer in 4 bits. Every rank must call it; the first writes.

    Args:
        dtype: of the files; the one that the model computes in unless given.

    Raises:
        UserError: as save_model does.
    """
    weights.check_written(dtype)
    folder = weights.make_folder(folder)
    if is_first():
        write_configurations(model, folder, dtype or model.config.dtype)
    weights.write_whole(model, merged_weights(model, dtype), folder if is_first() else None)
