"""A model whose parameters have no memory yet, and whose buffers are as its class makes them.

Parameters are laid out first and filled then, from files or with random numbers. Buffers (masks,
positions, scales) are made where a class is, and many are in no file and in no initialisation: on
torch's meta device they would be lost, and memory that nobody wrote to would stand in their place.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def parameters_without_memory() -> Iterator[None]:
    """For so long what becomes a module's parameter goes to the meta device, all else does not.
    Random buffers are the same on every rank."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        plain(module, name, parameter)

    nn.Module.register_parameter = register
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            yield
    finally:
        nn.Module.register_parameter = plain


def keep_in_float32(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold in float32 what transformers' from_pretrained holds so, of a model in 16 bits: what its
    class names, as biases of routing, which decide between experts by their last bits."""
    names = {*(getattr(model, "_keep_in_fp32_modules_strict", None) or ())}
    if dtype == torch.float16:
        names |= {*(getattr(model, "_keep_in_fp32_modules", None) or ())}
    if not names or dtype not in (torch.float16, torch.bfloat16):
        return
    kept = re.compile("|".join(name.replace("*", ".*") for name in sorted(names)))
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and kept.search(f"{path}.{name}"):
                parameter = nn.Parameter(parameter.detach().float(), parameter.requires_grad)
                module._parameters[name] = parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and kept.search(f"{path}.{name}"):
                module._buffers[name] = buffer.float()


def give_memory(module: nn.Module, device: torch.device | str) -> None:
    """Put a module on a device; what has no memory gets some there, in which anything stands."""
    module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))


def tie(model: nn.Module, ties: Iterable[list[str]]) -> None:
    """Make parameters one again that were one before they got memory, by their names then: see
    `tied_names`."""
    for first, *others in ties:
        for name in others:
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, model.get_parameter(first))
