"""The kinds of a model's blocks, where these differ: as the first few that have no experts, or one
layer in six that sees all earlier tokens. What some blocks are in the mean stands for them.

    mean_shape(shape, mix_of(shape, range(8)))      # the shape with the first eight layers' blocks
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from helpers.planner.shape.parameters import Held
from helpers.planner.shape.shape import Linear, Shape

Mix = tuple[int, ...]  # how many blocks of each kind, as the smallest such numbers


class BlockKind(NamedTuple):
    """Blocks with the same parameters and products, which the configuration calls the same.

    layer_type: what it calls them, if anything.
    """

    held: tuple[Held, ...]
    products: tuple[Linear, ...]
    layer_type: str = ""

    @property
    def elements(self) -> int:
        return sum(held.elements for held in self.held)


def mix_of(shape: Shape, layers: Iterable[int]) -> Mix:
    """Of these layers' blocks; of no layers, the whole model's."""
    kinds = Counter(shape.kind_of[layer] for layer in layers)
    if not kinds:
        return shape.mix
    counts = [kinds[kind] for kind in range(len(shape.kinds))]
    return tuple(count // math.gcd(*counts) for count in counts)


@lru_cache(maxsize=4096)
def mean_shape(shape: Shape, mix: Mix) -> Shape:
    """The shape with the mean of such blocks' products, and the largest one's parameters."""
    if mix == shape.mix:
        return shape
    largest = max((kind for kind, count in zip(shape.kinds, mix) if count), key=_elements)
    return replace(shape, held=largest.held, block=mean_block(shape.kinds, mix), mix=mix)


def mean_block(kinds: tuple[BlockKind, ...], mix: Mix) -> tuple[Linear, ...]:
    """The products of blocks that differ, in the mean: a side of each is the model's width."""

    def mean(sizes: Iterable[int]) -> int:
        return max(1, round(sum(map(int.__mul__, sizes, mix)) / sum(mix)))

    return tuple(
        replace(
            same[0],
            inputs=mean(one.inputs for one in same),
            outputs=mean(one.outputs for one in same),
        )
        for same in zip(*(kind.products for kind in kinds))
    )


def _elements(kind: BlockKind) -> int:
    return kind.elements
