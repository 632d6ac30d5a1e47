"""A training step as stretches of time: what a rank holds when each begins, and what it holds and
frees in it. Only those are listed that can have the step's fullest moment.

    for start, events in stretches(job, rank, gradients): peak(start, events)
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.planner.memory.activations import activation_bytes, block_bytes, waiting_bytes
from helpers.planner.memory.components import (
    block_gradient_bytes,
    end_bytes,
    gathered_bytes,
    head_gradient_bytes,
    last_message_bytes,
    left_over_bytes,
    loss_gradients_bytes,
    loss_work_bytes,
    reduced_bytes,
    root_bytes,
    sent_bytes,
    sent_last_bytes,
    stage_messages_bytes,
    swapped_bytes,
    table_work_bytes,
    waiting_head_bytes,
    working_bytes,
)
from helpers.planner.memory.microbatches_in_flight import in_flight, in_halves, put_off
from helpers.planner.memory.timeline import Event, Held, free, hold
from helpers.planner.model.training_job import Job

Stretch = tuple[Held, list[Event]]


class Common(NamedTuple):
    """What several stretches have alike, in bytes.

    gradients: of the rank, when all are there; summed: those that are when most activations are.
    activations: when most micro-batches are in flight; of_others: of all of them but one; of_unit:
        of the blocks whose backward is one, of one micro-batch.
    always: parameters that stay gathered, and messages between stages.
    left_over: what a backward leaves behind; at_first: of that, when most activations are.
    other_ends: the end of the model of other micro-batches; ends_after: of one fewer.
    """

    gradients: float
    summed: float
    activations: float
    of_others: float
    of_unit: float
    always: float
    left_over: float
    at_first: float
    other_ends: float
    ends_after: float


def stretches(job: Job, rank: int, gradients: float) -> Iterator[Stretch]:
    """Of pipeline rank `rank`, in no order of time.

    Args:
        gradients: bytes of the rank's, when all are there.
    """
    common = _common(job, rank, gradients)
    if job.rank_of[-1] == rank:
        yield from _loss(job, common)
    yield from _backward(job, rank, common)
    yield from _second_backward(job, rank, common)
    if in_halves(job, rank):
        yield _weights_wait(job, rank, common)
    if gathered_bytes(job) and job.microbatches > 1:
        yield _next_forward(job, rank, common)
    yield from _end(job, rank, common)


def _common(job: Job, rank: int, gradients: float) -> Common:
    plan, activations, flying = job.plan, activation_bytes(job, rank), sum(in_flight(job, rank))
    left_over = left_over_bytes(job, rank)
    # is the backward of some micro-batch over when most are in flight?
    earlier = flying < job.microbatches * len(job.stages_of(rank))
    keeps_ends = plan.schedule == "gpipe" and job.rank_of[-1] == rank
    other_ends = end_bytes(job) * (flying - 1) if keeps_ends else 0.0
    offloaded = plan.offload and flying > 1
    return Common(
        gradients=gradients,
        summed=gradients if earlier else 0.0,
        activations=activations,
        of_others=activations if offloaded else activations * (flying - 1) / flying,
        of_unit=group_size(plan.activation) * block_bytes(job),
        always=stage_messages_bytes(job, rank) + root_bytes(job, rank),
        left_over=left_over,
        at_first=left_over if earlier else 0.0,
        other_ends=other_ends,
        ends_after=max(0.0, other_ends - end_bytes(job)),
    )


def _loss(job: Job, common: Common) -> Iterator[Stretch]:
    """When all activations are there. And of the second micro-batch, when the first's gradients
    are."""
    start = Held(
        gradients=common.summed,
        activations=common.activations,
        logits=common.other_ends,
        transients=common.always + common.at_first,
    )
    yield start, [hold("logits", end_bytes(job)), hold("logits", loss_work_bytes(job))]
    if common.of_others:
        start = Held(
            gradients=common.gradients,
            activations=common.of_others,
            logits=common.other_ends,
            transients=common.always + common.left_over,
        )
        yield start, [hold("logits", loss_gradients_bytes(job))]


def _backward(job: Job, rank: int, common: Common) -> Iterator[Stretch]:
    """Backward of one unit of blocks, where it can be the fullest of all of them."""
    sent, (first_head, later_head) = sent_bytes(job, rank), _heads(job, rank)
    units, grows = _units(job, rank), not (common.summed or in_halves(job, rank))
    last_of_many = job.plan.schedule == "interleaved" and rank == job.plan.pp - 1
    # fully_shard gathers the unit before, at a stage's first one another stage's
    of_another_stage = len(job.stages_of(rank)) > 1 and not last_of_many
    for done in _turning_points(units, sent > 0, grows):
        on_the_way = sent if done else common.at_first
        start = Held(
            gradients=common.summed or common.gradients * _share(job, rank, done, later_head),
            activations=min(common.activations, common.of_others + (units - done) * common.of_unit),
            logits=common.other_ends + (later_head if done else first_head),
            transients=common.always + on_the_way,
        )
        another = units - done > 1 or of_another_stage
        yield start, _unit_events(job, rank, start, common, on_the_way, another)


def _second_backward(job: Job, rank: int, common: Common) -> Iterator[Stretch]:
    """Backward of the second micro-batch's last unit, when the first's gradients are there."""
    if not common.of_others or common.summed:
        return
    start = Held(
        gradients=common.gradients,
        activations=common.of_others,
        logits=common.ends_after + _heads(job, rank)[1],
        transients=common.always + common.left_over,
    )
    another = _units(job, rank) > 1
    yield start, _unit_events(job, rank, start, common, common.left_over, another)


def _units(job: Job, rank: int) -> int:
    """Of a stage: blocks, or groups of them that are recomputed together."""
    layers = math.ceil(job.layers_of(rank) / len(job.stages_of(rank)))
    return math.ceil(layers / group_size(job.plan.activation))


def _heads(job: Job, rank: int) -> tuple[float, float]:
    """The head's gradient at the first unit's backward, and at later ones."""
    if job.rank_of[-1] != rank:
        return 0.0, 0.0
    return head_gradient_bytes(job), waiting_head_bytes(job)


def _turning_points(units: int, sends: bool, gradients_grow: bool) -> list[int]:
    """Units whose backward is over where the next one's can be the fullest: the first or the last,
    for between them activations go as evenly as gradients come. Where gradients are on their way
    during all but the first, and a unit is gathered ahead during all but the last, the second and
    the last but one too."""
    first, last = {0}, {units - 1}
    if sends:
        first.add(min(1, units - 1))
        last.add(max(0, units - 2))
    return sorted(first | last if gradients_grow else first)


def _share(job: Job, rank: int, done: int, waiting_head: float) -> float:
    """The share of a rank's gradients that are there when the last `done` units' backward is over:
    theirs, and those of the norm and head above if these do not wait."""
    if not done:
        return 0.0
    blocks = done * group_size(job.plan.activation)
    head = 0 if waiting_head else job.end_parameters(rank) - job.begin_parameters(rank)
    return (blocks * job.block_parameters + head) / job.parameters_of(rank)


def _unit_events(
    job: Job, rank: int, start: Held, common: Common, on_the_way: float, another: bool
) -> list[Event]:
    """A unit's backward.

    Args:
        on_the_way: bytes that were sent before and are freed when its own gradients are sent.
        another: is another unit gathered meanwhile?
    """
    gathered, working = gathered_bytes(job), working_bytes(job, rank)
    events = [
        hold("transients", 2 * gathered),  # a buffer, and the parameters that are copied out of it
        free("transients", gathered),
        hold("transients", gathered if another else 0.0),
        hold("transients", working),
        free("transients", working),
    ]
    if not gathered or in_halves(job, rank):
        return events
    gradients = block_gradient_bytes(job)
    return [
        *events,
        free("activations", min(common.of_unit, start.activations)),
        hold("transients", gradients),
        free("transients", on_the_way + gathered + gradients),
        hold("transients", reduced_bytes(job)),
    ]


def _weights_wait(job: Job, rank: int, common: Common) -> Stretch:
    """Most gradients of weights wait. What a block's backward works with and what it kept becomes,
    in part, what waits."""
    start = Held(
        gradients=common.summed,
        activations=activation_bytes(job, rank, put_off(job, rank)),
        transients=common.always,
    )
    gathered, waiting = gathered_bytes(job), group_size(job.plan.activation) * waiting_bytes(job)
    return start, [
        hold("transients", 2 * gathered),
        free("transients", gathered),
        hold("transients", working_bytes(job, rank) - waiting),
    ]


def _next_forward(job: Job, rank: int, common: Common) -> Stretch:
    """ZeRO-3 gathers the first block of the next micro-batch, while the buffer from which what is
    in no block was copied is still there."""
    start = Held(
        gradients=common.gradients,
        activations=common.of_others,
        logits=common.ends_after,
        transients=common.always + common.left_over,
    )
    return start, [hold("transients", root_bytes(job, rank) + 2 * gathered_bytes(job))]


def _end(job: Job, rank: int, common: Common) -> Iterator[Stretch]:
    """All gradients are there, and the embedding's is made; a matrix that is embedding and head has
    one on two ranks, which they swap."""
    if job.rank_of[0] == rank:
        start = Held(
            gradients=common.gradients,
            activations=common.of_others,
            transients=stage_messages_bytes(job, rank),
        )
        yield start, [hold("transients", table_work_bytes(job, rank))]
    if rank in (job.rank_of[0], job.rank_of[-1]):
        yield Held(gradients=common.gradients), [hold("transients", swapped_bytes(job))]
    if in_halves(job, rank):
        yield Held(gradients=common.gradients), [hold("transients", sent_last_bytes(job, rank))]
    others = common.of_others if job.plan.zero == 2 else 0.0
    gradients = last_message_bytes(job, rank, common.gradients)
    yield Held(gradients=gradients, activations=others, transients=common.always), []
