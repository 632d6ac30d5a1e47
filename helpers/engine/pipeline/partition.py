"""Which layers go to which stage: contiguous runs whose largest cost is as small as can be.

    costs = model_costs(model, seq_len=512)
    balance(costs, stages=4)                     # (7, 7, 7, 7): layers of each stage

A pipeline goes at the pace of its slowest stage, and needs the memory of its fullest. The embedding
is pinned to the first stage and the head to the last; both count, and where one costs as much as a
stage of layers it gets a stage without any.

Source of the weight between time and memory: `memory_weight` of the SageMaker model parallel
library, 0.2 for its `optimize="speed"` and 0.8 for `"memory"`. That library gave modules, not runs
of layers, to stages, in any order: for GPT-J's 28 layers on 16 stages it put embedding and head,
2.05 layers' worth of parameters, on a stage of their own and one or two layers on each other. In a
pipeline that passes activations from stage to stage they are at its two ends; each can still have a
stage of its own, and two layers are then the most that any stage holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import inf, lcm
from typing import NamedTuple

from torch import nn

from ..errors import UserError, check_count, is_number
from ..models.architecture import family_of, text_config
from ..models.families import Family

SPEED, MEMORY = 0.2, 0.8  # values of memory_weight


class Cost(NamedTuple):
    """What a part of the model costs, in any units: only shares of the whole model count."""

    time: float
    memory: float


@dataclass(frozen=True)
class Costs:
    """The parts of a model in order; embedding and head are pinned to first and last stage."""

    embedding: Cost
    layers: tuple[Cost, ...]
    head: Cost

    @property
    def head_with_last_layer(self) -> "Costs":
        """The same where the head cannot be on a stage without layers."""
        *layers, last = self.layers
        joined = Cost(last.time + self.head.time, last.memory + self.head.memory)
        return Costs(self.embedding, (*layers, joined), Cost(0, 0))

    def shares(self, memory_weight: float) -> list[Fraction]:
        """The weighted cost of embedding, each layer and head as a share of the whole model's.

        Exact: stages of equal cost compare equal, in whatever order they were added up.
        """
        if not is_number(memory_weight) or not 0 <= memory_weight <= 1:
            raise UserError(
                f"memory_weight goes from 0 (time) to 1 (memory), not {memory_weight!r:.40}"
            )
        items = [self.embedding, *self.layers, self.head]
        if not all(0 <= item.time < inf and 0 <= item.memory < inf for item in items):
            raise UserError("a part of the model cannot cost less than nothing, or without end")
        times, memories = ([Fraction(cost) for cost in kind] for kind in zip(*items))
        time, memory, weight = sum(times) or 1, sum(memories) or 1, Fraction(memory_weight)
        return [
            (1 - weight) * t / time + weight * m / memory
            for t, m in zip(times, memories, strict=True)
        ]

    def whole_shares(self, memory_weight: float) -> list[int]:
        """The shares in a unit of which each is a whole number: as exact as fractions, quicker."""
        shares = self.shares(memory_weight)
        unit = lcm(*(share.denominator for share in shares))
        return [int(share * unit) for share in shares]


def check_cut(family: Family) -> None:
    """Raise a UserError if there is no place to cut the model at."""
    if None in (family.blocks, family.embedding):
        raise UserError(
            f"{family.name} cannot be cut into stages: its modules are not an embedding and a list "
            "of blocks; dp_shard and dp_replicate work with it"
        )


def model_costs(model: nn.Module, seq_len: int, family: Family | None = None) -> Costs:
    """Modelled costs of a transformers model's parts; it may be on the meta device.

    time: FLOPs of a token's forward, 2 a matrix element and 4·seq·hidden a layer for the attention
        scores; backward takes twice that of each part, so the shares hold for both.
    memory: parameters, to which weights, gradients and optimizer state are proportional. A tied
        head counts again: first and last stage each hold it.

    Args:
        family: of the model; found out by its modules where it is not given.

    Raises:
        UserError: the model has no list of blocks.
    """
    family = family or family_of(model)
    check_cut(family)
    blocks = f"{family.blocks}."
    scores = 4 * seq_len * text_config(model.config).hidden_size
    time = [0] + [scores] * len(model.get_submodule(family.blocks)) + [0]
    memory = [0] * len(time)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        item = 0
        if name.startswith(blocks):
            item = 1 + int(name.removeprefix(blocks).split(".")[0])
        elif name.startswith((f"{family.norm}.", f"{family.top or family.head}.")):
            item = -1
        memory[item] += parameter.numel()
        if item and parameter.ndim > 1:  # the embedding is looked up, not multiplied
            time[item] += 2 * parameter.numel()
    first, *layers, last = map(Cost, time, memory)
    return Costs(first, tuple(layers), last)


def balance(costs: Costs, stages: int, memory_weight: float = SPEED) -> tuple[int, ...]:
    """Layers of each stage, such that the largest stage is smallest; of those, the most even.

    Every stage has a layer, but for a first or last one that the embedding or the head fills alone.
    Exact, in stages x layers^2 steps: first the smallest possible largest stage, then under that
    bound the smallest sum of squares.

    Raises:
        UserError: there are more stages than layers, or a memory_weight outside 0 to 1.
    """
    check_stages(len(costs.layers), stages)
    shares = costs.whole_shares(memory_weight)
    largest, _ = _best(shares, stages, max)
    _, ends = _best(shares, stages, lambda squares, cost: squares + cost**2, largest)
    counts = [end - start for start, end in zip((0, *ends), ends)]
    counts[0] -= 1  # the embedding
    counts[-1] -= 1  # the head
    return tuple(counts)


def _best(
    shares: list[int], stages: int, combine: Callable[[int, int], int], bound: float = inf
) -> tuple[int, tuple[int, ...]]:
    """The smallest combination of the stages' costs, none above `bound`, and where each stage ends.

    Of equals, the one with fewer layers in earlier stages, which have more micro-batches in flight.
    """
    total = [0, *accumulate(shares)]
    best = {0: (0, ())}  # where the stages so far end -> their combined cost, and all their ends
    for stage in range(1, stages + 1):
        left = stages - stage  # each of which needs an item
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (value, ends) in best.items():
            for end in range(start + 1, len(shares) - left + 1):
                cost = total[end] - total[start]
                if cost > bound:
                    break
                option = combine(value, cost), (*ends, end)
                reached[end] = min(option, reached.get(end, option))
        best = reached
    return best[len(shares)]


def check_partition(counts: Sequence[int], layers: int, stages: int) -> tuple[int, ...]:
    """An explicit list of layers a stage, if it covers the model.

    Raises:
        UserError: the list has another length than there are stages, leaves layers over or counts
            more than there are, or leaves a stage empty. The first and the last stage may have no
            layers, for they have the embedding and the head.
    """
    shown = ",".join(map(str, counts))
    if len(counts) != stages:
        raise UserError(f"the partition {shown} has {len(counts)} stages, the pipeline {stages}")
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in counts):
        raise UserError(f"the partition {shown} must list whole numbers of layers")
    if sum(counts) != layers:
        raise UserError(f"the partition {shown} has {sum(counts)} layers, the model {layers}")
    if 0 in counts[1:-1]:
        raise UserError(
            f"the partition {shown} leaves stage {counts.index(0, 1)} empty: every stage between "
            "the first and the last needs a layer"
        )
    return tuple(counts)


def check_stages(layers: int, stages: int) -> None:
    """Raise a UserError if `layers` are too few for `stages`."""
    check_count("stages", stages)
    if stages > layers:
        raise UserError(
            f"{stages} stages are too many for {layers} layers: at most {layers}, a layer each, or "
            "list them in `partition`, without one in the first and the last (stages are pp x "
            "virtual stages)"
        )


def layer_ranges(counts: Sequence[int]) -> tuple[range, ...]:
    """The numbers of the layers of each stage."""
    ends = list(accumulate(counts))
    return tuple(range(end - count, end) for end, count in zip(ends, counts))


def stage_costs(costs: Costs, counts: Sequence[int]) -> list[Cost]:
    """Time and memory of each stage, in the units of `costs`."""
    stages = [list(costs.layers[r.start : r.stop]) for r in layer_ranges(counts)]
    stages[0].insert(0, costs.embedding)
    stages[-1].append(costs.head)
    return [Cost(sum(c.time for c in s), sum(c.memory for c in s)) for s in stages]
