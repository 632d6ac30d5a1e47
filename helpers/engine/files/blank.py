"""A model whose parameters have no memory yet, and whose buffers are as its class makes them.

Parameters are laid out first and filled then, from files or with random numbers. Buffers (masks,
positions, scales) are made where a class is, and many are in no file and in no initialisation: on
torch's meta device they would be lost, and memory that nobody wrote to would stand in their place.
"""

from collections.abc import Iterator
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


def give_memory(module: nn.Module, device: torch.device | str) -> None:
    """Put a module on a device; what has no memory gets some there, in which anything stands."""
    module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))
