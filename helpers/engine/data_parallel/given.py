"""Which parameters have a gradient in a step, on any of the ranks that see other tokens.

What no token went through, a tower for images or an expert, has none in one process, and AdamW
leaves it as it is, weight decay included. A rank sends zeros for what it has none of, since another
may have one. That every rank has all is said beside the loss; where not, the ranks count.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.hooks import RemovableHandle

from ..messages.carriers import sum_of
from .owned_shards import OwnedShard


def anywhere(given: set[str], parts: Sequence[OwnedShard], group: ProcessGroup) -> set[str]:
    """Names of the parts of which a rank of the group has a gradient. Every rank must call it."""
    if not parts:
        return set()  # of a pipeline rank that has nothing to train
    names = [part.name for part in parts]
    has = torch.tensor([name in given for name in names], dtype=torch.float32)
    counts = sum_of(has.to(parts[0].tensor.device), group).tolist()
    return {name for name, count in zip(names, counts, strict=True) if count}


def tell(on_gradient: WeakMethod, name: str, parameter: Tensor) -> None:
    """Call it if what it belongs to is still there. A parameter that held that would be held by it:
    a circle through autograd, which no garbage collector sees, and neither would ever be freed."""
    if (call := on_gradient()) is not None:
        call(name, parameter)


class Heard:
    """Hears of the gradients of what fully_shard has gathered: the parameters that a backward fills
    are others than the sharded ones, whose gradients are zeros where it filled none.

    Args:
        units: modules that fully_shard wrapped together, inner ones first.
        trainable: sharded parameters by name.

    Attributes:
        names: of the parameters that had a gradient in this step.
    """

    def __init__(
        self, model: nn.Module, units: Iterable[Sequence[nn.Module]], trainable: dict[str, Tensor]
    ) -> None:
        self.names: set[str] = set()
        self.waiting: dict[nn.Module, RemovableHandle] = {}
        name_of = {id(parameter): name for name, parameter in trainable.items()}
        for unit in units:
            every = [id(p) for module in unit for p in module.parameters()]
            own = [name_of.pop(one) for one in every if one in name_of]
            listen = partial(self._listen, model, own)
            self.waiting[unit[0]] = unit[0].register_forward_pre_hook(listen)

    def _listen(self, model: nn.Module, names: list[str], first: nn.Module, *_: Any) -> None:
        """Once fully_shard has gathered a unit, and its modules have the whole parameters: the same
        ones from then on."""
        self.waiting.pop(first).remove()
        on_gradient = WeakMethod(self._on_gradient)
        for name in names:
            parameter = model.get_parameter(name)
            parameter.register_post_accumulate_grad_hook(partial(tell, on_gradient, name))

    def _on_gradient(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:  # autograd tells of those that got none, too
            self.names.add(name)
