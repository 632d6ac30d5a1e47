"""What stands in a stage's model in the place of modules that other stages have."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Elsewhere(nn.Module):
    """In the place of a module that another stage has: gives zeros, which nobody uses.

    shape: of what it gives; of its input where that is of hidden states, and none of that of ids.
        Between blocks it has dims, since some models index what a block gives.
    looks_up: is it in an embedding's place, whose input is no hidden states of whatever dtype?
    lacks: the shapes of the parameters that it stands for, by name.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        looks_up: bool = False,
        lacks: dict[str, torch.Size] | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.looks_up, self.lacks = shape, looks_up, lacks or {}

    def named_as(self, block: nn.Module) -> "Elsewhere":
        """With the block's words and numbers, as its kind of attention, which a model's loop over
        its blocks may ask for."""
        own = vars(self)
        plain = {name: value for name, value in vars(block).items() if isinstance(value, str | int)}
        own.update({name: value for name, value in plain.items() if name not in own})
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        given = tensors[0] if tensors else torch.zeros(())
        if self.looks_up or not given.is_floating_point():
            return torch.zeros((), device=given.device).expand(self.shape)
        return given.new_zeros(()).expand(self.shape or given.shape)


@contextmanager
def with_parameters(model: nn.Module) -> Iterator[None]:
    """For so long, what is elsewhere has its parameters, without memory: rules by which a model is
    initialised ask for those of the modules below."""
    filled = [module for module in model.modules() if isinstance(module, Elsewhere)]
    for module in filled:
        for name, shape in module.lacks.items():
            *path, leaf = name.split(".")
            at = module
            for step in path:
                at = at._modules.setdefault(step, nn.Module())
            at._parameters[leaf] = nn.Parameter(torch.empty(shape, device="meta"))
    try:
        yield
    finally:
        for module in filled:
            module._modules.clear()
            module._parameters.clear()


class Exit(Elsewhere):
    """In the place of the first module after a stage: keeps what comes to it."""

    kept: Tensor | None = None

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.kept = hidden_states
        return super().forward(hidden_states)

    def take(self) -> Tensor:
        kept, self.kept = self.kept, None
        if kept is None:
            raise RuntimeError("no hidden states came out of a stage: its blocks were not called")
        return kept
