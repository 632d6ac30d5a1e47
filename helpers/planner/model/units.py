"""The units of a stage: blocks that are gathered together, and recomputed together."""

from itertools import accumulate
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import elements


class Unit(NamedTuple):
    """How many blocks it has, and their parameters on the first tensor rank."""

    blocks: int
    parameters: float


def units_of(job: Job, stage: int) -> list[Unit]:
    """Of a stage, in the order of its backward."""
    blocks = job.layers[stage]
    if not blocks:
        return []
    size = min(group_size(job.plan.activation), blocks)
    whole, rest = divmod(blocks, size)
    if not job.shape.kinds:
        each = job.block_parameters
        last = [Unit(rest, rest * each)] if rest else []
        return last + whole * [Unit(size, size * each)]
    sizes = (
        elements(held, job.plan.tp, 0, 1, 0)
        for held, several in job.blocks_of((stage,))
        for _ in range(several)
    )
    until = [0, *accumulate(sizes)]
    begins = range(0, blocks, size)
    ends = [min(begin + size, blocks) for begin in begins]
    return [Unit(e - b, until[e] - until[b]) for b, e in zip(begins, ends)][::-1]


def blocks_in(units: list[Unit]) -> int:
    """Of all these."""
    return sum(unit.blocks for unit in units)


def parameters_in(units: list[Unit]) -> float:
    """Of all their blocks."""
    return sum(unit.parameters for unit in units)


def largest_unit(job: Job, rank: int) -> int:
    """Blocks of a pipeline rank that are gathered and computed again together, at most."""
    return min(group_size(job.plan.activation), max(job.layers[s] for s in job.stages_of(rank)))
