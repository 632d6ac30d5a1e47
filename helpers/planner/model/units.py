"""The units of a stage: blocks that are gathered together, and recomputed together."""

from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import elements


class Units(NamedTuple):
    """Of each, in the order of the stage's backward: how many blocks it has, and their parameters
    on the first tensor rank."""

    blocks: list[int]
    parameters: list[float]


def units_of(job: Job, stage: int) -> Units:
    """Of a stage."""
    blocks = job.layers[stage]
    if not blocks:
        return Units([], [])
    size = min(group_size(job.plan.activation), blocks)
    alike = _alike(blocks, size, job.block_parameters)
    if not job.shape.kinds:
        return alike
    sizes = (
        elements(held, job.plan.tp, 0, 1, 0)
        for held, several in job.blocks_of((stage,))
        for _ in range(several)
    )
    until = [0, *accumulate(sizes)]
    forward = alike.blocks[::-1]
    found = [until[end] - until[end - own] for end, own in zip(accumulate(forward), forward)]
    return Units(alike.blocks, found[::-1])


@lru_cache(maxsize=4096)
def _alike(blocks: int, size: int, each: float) -> Units:
    """Of so many blocks of so many parameters each, in units of so many."""
    whole, rest = divmod(blocks, size)
    sizes = ([rest] if rest else []) + whole * [size]
    return Units(sizes, [each * size for size in sizes])


def largest_unit(job: Job, rank: int) -> int:
    """Blocks of a pipeline rank that are gathered and computed again together, at most."""
    return min(group_size(job.plan.activation), max(job.layers[s] for s in job.stages_of(rank)))
