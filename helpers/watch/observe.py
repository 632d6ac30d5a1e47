"""One step, looked at: by layer the gradient, the weights, their update and the activations.

Every rank adds up what it holds, and one gathering of a few numbers per layer makes them the whole
model's, counted once each, whatever the layout. Nothing that the step computes is changed.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from helpers.engine.data_parallel.owned_shards import OwnedShard
from helpers.engine.ranks import over_ranks

LAYER = re.compile(r"\.(\d+)\.")
NEXT_TO_ZERO = 1e-6  # an activation below it passes nothing on
AT_THE_END = 0.97  # of a tanh's range, and likewise of a sigmoid's
BOUNDED = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


@dataclass
class Sums:
    """Of one layer, or of a parameter outside of the layers: squares added up, and numbers."""

    gradient: float = 0.0
    weight: float = 0.0
    update: float = 0.0
    numbers: float = 0.0

    def add(self, other: "Sums") -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def rms(self, name: str) -> float:
        """The root of the mean square of the gradient, the weight or the update."""
        return math.sqrt(getattr(self, name) / self.numbers) if self.numbers else 0.0


@dataclass
class Activations:
    """Of one layer: how many there were, next to zero, and at an end of a bounded function."""

    count: int = 0
    zero: int = 0
    ended: int = 0


@dataclass
class Observation:
    """What one step showed, the same on every rank.

    layers: by number; others: parameters outside of them, by name.
    silent: parameters whose gradient is missing or zero.
    """

    layers: dict[int, Sums] = field(default_factory=dict)
    others: dict[str, Sums] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    activations: dict[int, Activations] = field(default_factory=dict)

    @property
    def units(self) -> dict[str, Sums]:
        """Layers and the parameters outside, by the names that a reader knows."""
        return {f"layer {number}": one for number, one in self.layers.items()} | self.others


class Observer:
    """Looks at one step of a trainer: see `Trainer.step`.

    with observer.activations_of(model):
        trainer.step(ids, labels, observer=observer)
    observer.gather()
    """

    def __init__(self) -> None:
        self._sums: dict[int | str, Sums] = defaultdict(Sums)
        self._loud: set[str] = set()
        self._names: set[str] = set()
        self._before: dict[str, Tensor] = {}
        self._counts: dict[int, Tensor] = {}

    def before_update(
        self, parts: Iterable[OwnedShard], gradients: dict[str, Tensor], scale: float
    ) -> None:
        """Note gradients and weights.

        Args:
            gradients: of the parts, by name, multiplied by `scale`, not yet clipped.
        """
        for part in parts:
            self._names.add(part.name)
            weight = part.tensor.detach()
            self._before[part.name] = weight.clone()
            gradient = gradients.get(part.name)
            square = 0.0 if gradient is None else _square(gradient) / scale**2
            if square:
                self._loud.add(part.name)
            share = 1 / part.copies
            self._sums[unit_of(part.name)].add(
                Sums(square * share, _square(weight) * share, 0.0, weight.numel() * share)
            )

    def after_update(self, parts: Iterable[OwnedShard]) -> None:
        for part in parts:
            update = part.tensor.detach() - self._before.pop(part.name)
            self._sums[unit_of(part.name)].update += _square(update) / part.copies

    @contextmanager
    def activations_of(self, model: nn.Module) -> Iterator[None]:
        """Count what comes out of activation functions inside layers, while in the block."""
        hooks = []
        for name, module in model.named_modules():
            found = LAYER.search(f".{name}.")
            if found and is_activation(module):
                hooks.append(module.register_forward_hook(self._counting(int(found[1]), module)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _counting(self, layer: int, module: nn.Module) -> Callable[..., None]:
        bounded = kind_of(module)

        def count(module: nn.Module, args: object, out: Tensor) -> None:
            size = out.detach().abs()
            low = (size <= NEXT_TO_ZERO).sum()
            ended = torch.zeros_like(low)
            if bounded == "tanh":
                ended = (size >= AT_THE_END).sum()
            elif bounded == "sigmoid":
                ended = ((2 * out.detach() - 1).abs() >= AT_THE_END).sum()
            counts = torch.stack([torch.full_like(low, out.numel()), low, ended])
            self._counts[layer] = self._counts.get(layer, 0) + counts

        return count

    def gather(self) -> Observation:
        """The whole model's, of all ranks. Every rank must call it."""
        counts = {layer: counted.tolist() for layer, counted in self._counts.items()}
        whole, loud, names = Observation(), set(), set()
        for sums, heard, named, counted in over_ranks(
            (dict(self._sums), self._loud, self._names, counts)
        ):
            loud |= heard
            names |= named
            for unit, one in sums.items():
                of = whole.layers if isinstance(unit, int) else whole.others
                of.setdefault(unit, Sums()).add(one)
            for layer, three in counted.items():
                one = whole.activations.setdefault(layer, Activations())
                one.count, one.zero, one.ended = (
                    a + b for a, b in zip((one.count, one.zero, one.ended), three)
                )
        whole.silent = sorted(names - loud)
        return whole


def unit_of(name: str) -> int | str:
    """The layer's number that a parameter belongs to, or its name where it is in none."""
    found = LAYER.search(name)
    return int(found[1]) if found else name


def is_activation(module: nn.Module) -> bool:
    """One of transformers' activation functions or of torch's."""
    home = type(module).__module__
    return home in ("torch.nn.modules.activation", "transformers.activations") and not isinstance(
        module, nn.MultiheadAttention
    )


def kind_of(module: nn.Module) -> str | None:
    """`tanh` or `sigmoid` for an activation that cannot leave its bounds."""
    return next((name for name, kind in BOUNDED.items() if isinstance(module, kind)), None)


def _square(numbers: Tensor) -> float:
    """The sum of squares, in float64."""
    if not numbers.numel():
        return 0.0
    return torch.linalg.vector_norm(numbers, dtype=torch.float64).item() ** 2
