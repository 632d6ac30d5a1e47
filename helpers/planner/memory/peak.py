"""Bytes that a rank holds at the fullest moment of a training step.

    memory = rank_memory(job, rank=0)        # of a pipeline rank
    memory.activations, memory.allocated, memory.total
    fullest(job).total                        # of the rank that holds most

Activations are there when a backward begins and gradients when it ends, so what a step needs is not
the sum of its parts but the largest of a few moments. components.py has the parts, step_events.py
when they come and go.

Against the dry run of five families at their published widths, with four layers, the fullest moment
is within 3 %: tests/planner/dry_run/test_dry_run.py.
"""

import math
from dataclasses import dataclass, fields

from helpers.planner.memory.components import rank_states
from helpers.planner.memory.step_events import stretches
from helpers.planner.memory.timeline import Held, peak
from helpers.planner.model.training_job import Job

CONTEXT_BYTES = 0.8 * 2**30  # a CUDA context, NCCL's buffers and cuBLAS's workspaces
# of what is allocated, for freed pieces too small to use: 5 to 10 % where it was measured
FRAGMENTS = 0.06


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its fullest moment, by category.

    logits, transients: as of timeline.Held.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transients: float

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated counts."""
        return self.states + self.activations + self.logits + self.transients

    @property
    def total(self) -> float:
        """With the context and the allocator's fragments: what the device must have."""
        return self.allocated * (1 + FRAGMENTS) + CONTEXT_BYTES


CATEGORIES = tuple(field.name for field in fields(Memory))


def fullest(job: Job, limit_bytes: float = math.inf) -> Memory:
    """The memory of the pipeline rank that holds most: the first, which has most micro-batches in
    flight, the last, which has the logits, or one between. Or of the first moment that is above
    `limit_bytes`."""
    most = rank_memory(job, 0, limit_bytes)
    for rank in sorted({min(1, job.plan.pp - 1), job.plan.pp - 1} - {0}):
        if most.total > limit_bytes:
            break
        other = rank_memory(job, rank, limit_bytes)
        most = max(most, other, key=lambda memory: memory.allocated)
    return most


def rank_memory(job: Job, rank: int, limit_bytes: float = math.inf) -> Memory:
    """Of pipeline rank `rank` at its fullest moment, or the first that is above `limit_bytes`; its
    first tensor and data rank, which hold the most."""
    states = rank_states(job, rank)
    room = (limit_bytes - CONTEXT_BYTES) / (1 + FRAGMENTS) - states.parameters - states.optimizer
    most = Held()
    for start, events in stretches(job, rank, states.gradients):
        most = max(most, peak(start, events), key=sum)
        if sum(most) > room:
            break
    return Memory(parameters=states.parameters, optimizer=states.optimizer, **most._asdict())
