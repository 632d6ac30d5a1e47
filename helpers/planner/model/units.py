"""The units of a stage: blocks that are gathered together, and recomputed together."""

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
    whole, rest = divmod(blocks, size)
    of_each = ([rest] if rest else []) + whole * [size]
    if not job.shape.kinds:
        each, last = job.block_parameters, [rest * job.block_parameters] if rest else []
        return Units(of_each, last + whole * [size * each])
    sizes = (
        elements(held, job.plan.tp, 0, 1, 0)
        for held, several in job.blocks_of((stage,))
        for _ in range(several)
    )
    until = [0, *accumulate(sizes)]
    ends = accumulate(reversed(of_each))
    found = [until[end] - until[end - own] for end, own in zip(ends, reversed(of_each))]
    return Units(of_each, found[::-1])


def largest_unit(job: Job, rank: int) -> int:
    """Blocks of a pipeline rank that are gathered and computed again together, at most."""
    return min(group_size(job.plan.activation), max(job.layers[s] for s in job.stages_of(rank)))
