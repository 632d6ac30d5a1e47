"""Bytes that a rank holds at the fullest moment of a training step.

    memory = rank_memory(job, rank=0)        # of a pipeline rank
    memory.activations, memory.allocated, memory.total
    fullest(job).total                        # of the rank that holds most

Activations are there when a backward begins and gradients when it ends, so what a step needs is not
the sum of its parts but the largest of a few moments. components.py has the parts, step_events.py
when they come and go.

Against the dry run of five families at their published widths, with four layers, the fullest moment
is within 3 %: tests/planner/dry_run/test_dry_run.py. Of small models 19 ranks in 20 are within 5 %,
under every schedule: test_every_rank.py there.
"""

import math
from functools import lru_cache

from helpers.planner.hardware.devices import CONTEXT_BYTES
from helpers.planner.memory.activations import offloaded_bytes
from helpers.planner.memory.adapted import adapted_memory
from helpers.planner.memory.categories import FRAGMENTS, Memory
from helpers.planner.memory.gradient_messages import unsent_bytes
from helpers.planner.memory.programs import program_memory
from helpers.planner.memory.states import rank_states
from helpers.planner.memory.step_events import stretches
from helpers.planner.memory.timeline import Held, peak
from helpers.planner.memory.turns import leading_forwards
from helpers.planner.model.training_job import Job
from helpers.planner.shape.kinds import Mix


def fullest(
    job: Job, limit_bytes: float = math.inf, context_bytes: float = CONTEXT_BYTES
) -> Memory:
    """The memory of the pipeline rank that holds most. Or of the first that is found to need more
    than `limit_bytes`."""
    most: Memory | None = None
    for rank in candidates(job):
        memory = rank_memory(job, rank, limit_bytes, context_bytes)
        most = memory if most is None else max(most, memory, key=lambda held: held.allocated)
        if most.total > limit_bytes:
            break
    return most


def candidates(job: Job) -> list[int]:
    """The pipeline ranks of which one holds most: of those with the same layers and ends of the
    model, the first, which has most micro-batches in flight; the last, which has most that wait for
    half of their backward; and the first with fewer forwards before its first backward, where a
    rank has several stages: the others may have ended theirs, and it has one more beside it."""
    chosen, mixes = set(), ((),) * job.plan.pp
    if job.shape.kinds:
        mixes = tuple(job.mix_of(job.stages_of(rank)) for rank in range(job.plan.pp))
    for ranks in _alike(tuple(job.layers), job.rank_of, mixes):
        chosen |= {ranks[0], ranks[-1]}
        if job.plan.stages > job.plan.pp and len(ranks) > 2:
            most = leading_forwards(job, ranks[0])
            fewer = (rank for rank in ranks if leading_forwards(job, rank) < most)
            chosen.add(next(fewer, ranks[0]))
    return sorted(chosen)


@lru_cache(maxsize=1024)
def _alike(
    layers: tuple[int, ...], rank_of: tuple[int, ...], mixes: tuple[Mix, ...]
) -> tuple[tuple[int, ...], ...]:
    """The ranks, by the layers of their stages, the model's ends and the kinds of their blocks."""
    found: dict[tuple, list[int]] = {}
    for rank, mix in enumerate(mixes):
        own = tuple(blocks for blocks, owner in zip(layers, rank_of, strict=True) if owner == rank)
        found.setdefault((own, rank_of[0] == rank, rank_of[-1] == rank, mix), []).append(rank)
    return tuple(map(tuple, found.values()))


def rank_memory(
    job: Job, rank: int, limit_bytes: float = math.inf, context_bytes: float = CONTEXT_BYTES
) -> Memory:
    """Of pipeline rank `rank` at its fullest moment, or the first that is above `limit_bytes`; its
    first tensor and data rank, which hold the most."""
    job = job.on(job.stages_of(rank))
    if job.adapters is not None:
        return adapted_memory(job, rank, context_bytes)
    if job.holds:
        return program_memory(job, rank, job.holds, context_bytes)
    states = rank_states(job, rank)
    room = (limit_bytes - context_bytes) / (1 + FRAGMENTS) - states.parameters - states.optimizer
    most = Held()
    for start, events in stretches(job, rank, max(states.gradients, unsent_bytes(job, rank))):
        most = max(most, peak(start, events), key=sum)
        if sum(most) > room:
            break
    return Memory(
        parameters=states.parameters,
        optimizer=states.optimizer,
        context=context_bytes,
        host=offloaded_bytes(job, rank),
        **most._asdict(),
    )
