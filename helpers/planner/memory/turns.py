"""The backwards of a rank at which most can be held, and what is there when each begins.

turns(job, rank, gradients)
"""

from typing import NamedTuple

from helpers.planner.memory.activations import activation_bytes, waiting_bytes
from helpers.planner.memory.components import (
    end_bytes,
    left_over_bytes,
    root_bytes,
    stage_messages_bytes,
)
from helpers.planner.memory.microbatches_in_flight import in_flight, in_halves
from helpers.planner.model.training_job import Job


class Turn(NamedTuple):
    """The backward of a micro-batch, in bytes: what is there when it begins.

    before: gradients of earlier ones. left_over: what the last of them left behind.
    always: parameters that stay gathered, and messages between stages.
    activations: of all micro-batches in flight; others: of all but this.
    ends: of the others, what they keep at the end of the model.
    """

    before: float
    left_over: float
    always: float
    activations: float
    others: float
    ends: float


def turns(job: Job, rank: int, gradients: float) -> list[Turn]:
    """That when most micro-batches are in flight; and the next, if that is the first of all.

    Args:
        gradients: bytes of the rank's, when all are there.
    """
    flight, stages = in_flight(job, rank), len(job.stages_of(rank))
    flying, activations = sum(flight), activation_bytes(job, rank)
    done = flying < job.microbatches * stages  # is a backward over when most are in flight?
    left_over, root = left_over_bytes(job, rank), root_bytes(job, rank)
    keeps_ends = job.plan.schedule == "gpipe" and job.rank_of[-1] == rank
    end = end_bytes(job) if keeps_ends else 0.0
    each = 0.0 if job.plan.offload else activations / flying
    begun = gradients * job.end_parameters(rank) / job.parameters_of(rank)
    first = Turn(
        before=gradients if done else begun if flight.halved else 0.0,
        left_over=left_over if done else 0.0,
        always=root + stage_messages_bytes(job, rank),
        activations=activations,
        others=activations - each if flying > 1 else 0.0,
        ends=end * (flying - 1),
    )
    if done or flying == 1:
        return [first]
    of_first = _first_gradients(job, rank) / job.parameters_of(rank)
    halved = put_off_bytes(job, rank)
    second = Turn(
        before=begun if in_halves(job, rank) else gradients * of_first,
        left_over=left_over,
        always=root + stage_messages_bytes(job, rank, later=True),
        activations=first.others + halved,
        others=first.others - (each if flying > 2 else first.others) + halved,
        ends=end * (flying - 2),
    )
    return [first, second]


def _first_gradients(job: Job, rank: int) -> int:
    """Gradients that a rank's first backward makes, of one stage."""
    stages = job.stages_of(rank)
    ends = len(stages) == 1 or job.rank_of[-1] == rank
    blocks = job.layers[stages[-1]] * job.block_parameters
    return blocks + (job.end_parameters(rank) if ends else 0)


def put_off_bytes(job: Job, rank: int) -> float:
    """Bytes of a stage and micro-batch whose gradients of weights come later."""
    if not in_halves(job, rank):
        return 0.0
    return job.layers_of(rank) / len(job.stages_of(rank)) * waiting_bytes(job)
