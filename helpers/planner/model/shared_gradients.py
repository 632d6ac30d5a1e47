"""Gradients of which each tensor rank has a part: of parameters that all of them hold whole.

shared_parameters(job, rank=0)        # norms of a split sequence, heads fewer than ranks
"""

from dataclasses import replace
from functools import lru_cache
from math import prod

from helpers.planner.model.stage_layers import layers_of_stages
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import held_by_all, outside_parameters
from helpers.planner.shape.shape import Shape


def shared_parameters(job: Job, rank: int) -> int:
    """Parameters of a pipeline rank that every tensor rank holds whole, of whose gradient each has
    a part: norms of a split sequence, or of an input that several norms read; the layers of
    key-value heads that are fewer than ranks.

    Source: arXiv 2205.05198, section 4.2.2, for the norms.
    """
    shape, plan = job.shape, job.plan
    if plan.tp == 1:
        return 0
    each = _of_kinds(shape, plan.tp, plan.sequence_parallel)
    last = plan.sequence_parallel and job.rank_of[-1] == rank
    beside = shape.final_norm if last else 0
    if not shape.kinds:
        return job.layers_of(rank) * each[0] + beside
    own = layers_of_stages(job.layers, job.stages_of(rank))
    return sum(each[shape.kind_of[layer]] for layer in own) + beside


def shared_gradient_bytes(job: Job, rank: int) -> float:
    """Of their gradients, which tensor ranks sum, on a data rank."""
    return shared_parameters(job, rank) * job.held_sum_bytes / job.plan.shards


@lru_cache(maxsize=4096)
def _of_kinds(shape: Shape, tp: int, sequence_parallel: bool) -> tuple[int, ...]:
    """Of a block of each kind."""
    several = shape.reductions == 1 and shape.norms > 1
    found = []
    for one in [replace(shape, held=kind.held) for kind in shape.kinds] or [shape]:
        held = sum(prod(part.sizes) for part in held_by_all(one, tp))
        found.append(held + (outside_parameters(one) if sequence_parallel or several else 0))
    return tuple(found)
