"""The units of a stage: blocks that are gathered together, and recomputed together."""

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.engine.pipeline.schedules import INPUT, WEIGHT
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import elements, experts_share, without_experts


class Units(NamedTuple):
    """Of each, in the order of the stage's backward: how many blocks it has, their parameters on
    the first tensor rank, and those of them that ZeRO-3 gathers: all but experts that are dealt
    out."""

    blocks: list[int]
    parameters: list[float]
    gathered: list[float]


def units_of(job: Job, stage: int) -> Units:
    """Of a stage."""
    blocks = job.layers[stage]
    if not blocks:
        return Units([], [], [])
    size = min(group_size(job.plan.activation), blocks)
    alike = _alike(blocks, size, job.block_parameters)
    if not job.shape.kinds and job.plan.ep == 1:
        return alike
    parameters = _in_units(job, stage, alike.blocks, tuple)
    if job.plan.ep == 1:
        return Units(alike.blocks, parameters, parameters)
    return Units(alike.blocks, parameters, _in_units(job, stage, alike.blocks, without_experts))


def made_in(job: Job, stage: int, units: Units, kind: str) -> list[float]:
    """Of each of a stage's units, the parameters whose gradients a turn of that kind makes: where
    those of weights come later than those of inputs, experts' do not (the engine's
    pipeline/split_backward.py)."""
    if kind not in (INPUT, WEIGHT):
        return units.parameters
    later = units.parameters
    if experts_share(job.shape):
        later = _in_units(job, stage, units.blocks, without_experts)
    if kind == WEIGHT:
        return later
    return [own - rest for own, rest in zip(units.parameters, later, strict=True)]


def sent_in(job: Job, stage: int, units: Units, kind: str) -> list[float]:
    """Those of them that ZeRO-3 sends when a unit's backward is over."""
    if kind != INPUT:
        return units.gathered
    if job.plan.ep > 1:
        return [0.0] * len(units.blocks)
    return made_in(job, stage, units, kind)


def _in_units(job: Job, stage: int, blocks: list[int], part: Callable) -> list[float]:
    """Parameters of units of so many blocks, of a part of what each block holds."""
    sizes = (
        elements(part(held), job.plan.tp, 0, 1, 0)
        for held, several in job.blocks_of((stage,))
        for _ in range(several)
    )
    until = [0, *accumulate(sizes)]
    forward = blocks[::-1]
    found = [until[end] - until[end - own] for end, own in zip(accumulate(forward), forward)]
    return found[::-1]


@lru_cache(maxsize=4096)
def _alike(blocks: int, size: int, each: float) -> Units:
    """Of so many blocks of so many parameters each, in units of so many."""
    whole, rest = divmod(blocks, size)
    sizes = ([rest] if rest else []) + whole * [size]
    parameters = [each * size for size in sizes]
    return Units(sizes, parameters, parameters)


def largest_unit(job: Job, rank: int) -> int:
    """Blocks of a pipeline rank that are gathered and computed again together, at most."""
    return min(group_size(job.plan.activation), max(job.layers[s] for s in job.stages_of(rank)))
