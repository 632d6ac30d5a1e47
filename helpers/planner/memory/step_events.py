"""A training step as stretches of time: what a rank holds when each begins, and what it holds and
frees in it. Only those are listed that can have the step's fullest moment.

    for start, events in stretches(job, rank, gradients): peak(start, events)
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from helpers.planner.memory.activations import (
    activation_bytes,
    kept_bytes,
    largest_unit,
    waiting_bytes,
)
from helpers.planner.memory.components import (
    end_bytes,
    gathered_bytes,
    last_bytes,
    left_over_bytes,
    loss_work_bytes,
    reduced_bytes,
    root_bytes,
    sent_bytes,
    swapped_bytes,
    table_work_bytes,
    unit_gradient_bytes,
    waiting_head_bytes,
    working_bytes,
)
from helpers.planner.memory.gradient_messages import (
    Made,
    first_sent_bytes,
    last_message_bytes,
    made_bytes,
    message_work_bytes,
    messages,
    sends_now,
    sent_last_bytes,
)
from helpers.planner.memory.microbatches_in_flight import in_halves, put_off
from helpers.planner.memory.timeline import Event, Held, free, hold
from helpers.planner.memory.turns import Turn, put_off_bytes, turns
from helpers.planner.model.training_job import Job

Stretch = tuple[Held, list[Event]]


class Common(NamedTuple):
    """What several stretches have alike.

    gradients: bytes of the rank's, when all are there.
    units: blocks of each unit of a stage, in the order of its backward: what is gathered together,
        and recomputed together.
    turns: backwards at which most can be held.
    sends: are messages of gradients sent in them?
    """

    gradients: float
    units: list[int]
    turns: list[Turn]
    sends: bool


def stretches(job: Job, rank: int, gradients: float) -> Iterator[Stretch]:
    """Of pipeline rank `rank`, in no order of time.

    Args:
        gradients: bytes of the rank's, when all are there.
    """
    common = Common(
        gradients=gradients,
        units=_units(job, rank),
        turns=turns(job, rank, gradients),
        sends=sends_now(job),
    )
    for turn in common.turns:
        if job.rank_of[-1] == rank:
            yield _loss(job, rank, turn, common)
        if common.units:
            yield from _backward(job, rank, turn, common)
    if in_halves(job, rank):
        yield _weights_wait(job, rank, common)
    if job.plan.zero == 3 and job.microbatches > 1:
        yield _next_forward(job, rank, common)
    yield from _end(job, rank, common)


def _units(job: Job, rank: int) -> list[int]:
    blocks = max(job.layers[stage] for stage in job.stages_of(rank))
    if not blocks:
        return []
    whole, rest = divmod(blocks, largest_unit(job, rank))
    return ([rest] if rest else []) + whole * [largest_unit(job, rank)]


def _loss(job: Job, rank: int, turn: Turn, common: Common) -> Stretch:
    gathered = gathered_bytes(job, common.units[0]) if common.units else 0.0
    # no block frees the buffer from which a forward copied what is in no block
    kept = job.layers[-1] == 0 and job.plan.schedule != "gpipe"
    buffer = root_bytes(job, rank) if kept else 0.0
    start = Held(
        gradients=turn.before,
        activations=turn.activations,
        logits=turn.ends,
        transients=turn.always + turn.left_over + buffer,
    )
    return start, [hold("logits", end_bytes(job)), hold("logits", loss_work_bytes(job, gathered))]


def _backward(job: Job, rank: int, turn: Turn, common: Common) -> Iterator[Stretch]:
    """Of one unit of blocks, where it can be the fullest of all of them."""
    head = waiting_head_bytes(job) if job.rank_of[-1] == rank else 0.0
    units = common.units
    for done in _turning_points(job, rank, turn, common):
        made = Made(0.0, 0.0)
        if common.sends or not turn.before:
            made = made_bytes(job, rank, _made(job, rank, sum(units[:done])), common.gradients)
        sent = sent_bytes(job, rank, units[done - 1]) if done else turn.left_over
        # the gradient that came is that of the first unit's result, which it works with
        taken = 0.0 if done or job.rank_of[-1] == rank else job.hidden_bytes / job.sequence_ranks
        start = Held(
            gradients=turn.before or made.summed,
            activations=min(turn.activations, turn.others + kept_bytes(job, sum(units[done:]))),
            logits=turn.ends + head,
            transients=turn.always + sent - taken + made.on_the_way,
        )
        yield start, _unit_events(job, rank, turn, common, done, sent)


def _turning_points(job: Job, rank: int, turn: Turn, common: Common) -> list[int]:
    """How many units' backward is over where the next one's can be the fullest: none; one, if the
    second is larger, or ZeRO-3 has gradients of the first on their way; those that fill one, two
    and three messages; or all but two or one, for between them activations go as evenly as
    gradients come."""
    units = common.units
    points = {0, 1} if job.plan.zero == 3 or units[0] < units[-1] else {0}
    if common.sends:
        each, head = job.block_parameters * units[-1], _made(job, rank, 0)
        first = messages(job, rank)[:3]
        points |= {math.ceil((message.end - head) / each) - 1 for message in first}
    if not (turn.before or in_halves(job, rank)):
        points |= {len(units) - 2, len(units) - 1}
    return sorted(point for point in points if 0 <= point < len(units))


def _made(job: Job, rank: int, blocks: int) -> float:
    """Gradients that are there when the last blocks' backward is over: theirs, if they do not come
    later, and those of the norm and head above if these do not wait."""
    made = 0 if in_halves(job, rank) else blocks * job.block_parameters
    if job.plan.zero == 3:
        return made
    end = job.end_parameters(rank) - job.begin_parameters(rank)
    matrix = job.vocab_rows * job.shape.hidden
    waits = waiting_head_bytes(job) and end > matrix
    return made + end - (matrix if waits else 0)


def _unit_events(
    job: Job, rank: int, turn: Turn, common: Common, done: int, sent: float
) -> list[Event]:
    """A unit's backward.

    Args:
        done: units whose backward is over.
        sent: bytes that were sent before and are freed when its own gradients are sent.
    """
    blocks, *later = common.units[done:]
    gathered, working = gathered_bytes(job, blocks), working_bytes(job, rank, blocks)
    if common.sends and not done:  # later two messages are on their way already
        working += first_sent_bytes(job, rank, _made(job, rank, 0))
    last_of_many = job.plan.schedule == "interleaved" and rank == job.plan.pp - 1
    # fully_shard gathers the unit before, at a stage's first one another stage's
    if not later and len(job.stages_of(rank)) > 1 and not last_of_many:
        later = [blocks]
    events = [
        hold("transients", 2 * gathered),  # a buffer, and the parameters that are copied out of it
        free("transients", gathered),
        hold("transients", gathered_bytes(job, later[0]) if later else 0.0),
        hold("transients", working),
        free("transients", working),
        free("activations", min(kept_bytes(job, blocks), turn.activations)),
    ]
    if in_halves(job, rank):
        return events
    if not gathered:
        return [*events, *_gradient_events(job, rank, turn, common, done)]
    gradients = unit_gradient_bytes(job, blocks)
    return [
        *events,
        hold("transients", gradients),
        free("transients", sent + gathered + gradients),
        hold("transients", reduced_bytes(job, blocks)),
    ]


def _gradient_events(job: Job, rank: int, turn: Turn, common: Common, done: int) -> list[Event]:
    """A unit's gradients, where ZeRO-3 does not gather it. What is added to earlier ones takes no
    memory, unless it is sent."""
    if turn.before and not common.sends:
        return []
    before, after = (_made(job, rank, sum(common.units[:units])) for units in (done, done + 1))
    begun = made_bytes(job, rank, before, common.gradients)
    grown = made_bytes(job, rank, after, common.gradients)
    last = last_bytes(job)
    return [
        hold("transients", grown.on_the_way - begun.on_the_way),
        hold("gradients", 0.0 if turn.before else grown.summed - begun.summed),
        hold("transients", last),
        free("transients", last),
        hold("transients", message_work_bytes(job, rank, before, after)),
    ]


def _weights_wait(job: Job, rank: int, common: Common) -> Stretch:
    """Most gradients of weights wait. What a block's backward works with and what it kept becomes,
    in part, what waits."""
    start = Held(
        gradients=common.turns[0].before,
        activations=activation_bytes(job, rank, put_off(job, rank)),
        transients=common.turns[-1].always,
    )
    blocks = max(common.units, default=0)
    gathered, waiting = gathered_bytes(job, blocks), blocks * waiting_bytes(job)
    work = max(0.0, working_bytes(job, rank, blocks) - waiting) if blocks else 0.0
    return start, [
        hold("transients", 2 * gathered),
        free("transients", gathered),
        hold("transients", work),
        free("transients", work + gathered),
        free("activations", put_off_bytes(job, rank)),
        hold("gradients", common.gradients - start.gradients),
    ]


def _next_forward(job: Job, rank: int, common: Common) -> Stretch:
    """ZeRO-3 gathers the first block of the next micro-batch, while the buffer from which what is
    in no block was copied is still there."""
    start = Held(
        gradients=common.gradients,
        activations=common.turns[0].others,
        logits=common.turns[-1].ends,
        transients=common.turns[-1].always + left_over_bytes(job, rank),
    )
    gathered = gathered_bytes(job, common.units[-1]) if common.units else 0.0
    times = 1 if job.plan.schedule == "gpipe" else 2  # gathered, and copied out
    return start, [hold("transients", root_bytes(job, rank) + times * gathered)]


def _end(job: Job, rank: int, common: Common) -> Iterator[Stretch]:
    """All gradients are there, and the embedding's is made; a matrix that is embedding and head has
    one on two ranks, which they swap."""
    if job.rank_of[0] == rank:
        others = _made(job, rank, sum(common.units))
        if common.sends:  # the positions' too
            last = messages(job, rank)[-1]
            others = max(others, last.end - last.elements)
        made = made_bytes(job, rank, others, common.gradients)
        for turn in common.turns:
            start = Held(
                gradients=turn.before or made.summed,
                activations=turn.others,
                transients=turn.always - root_bytes(job, rank) + made.on_the_way,
            )
            yield start, [hold("transients", table_work_bytes(job, rank, not turn.before))]
    if rank in (job.rank_of[0], job.rank_of[-1]):
        yield Held(gradients=common.gradients), [hold("transients", swapped_bytes(job))]
    if in_halves(job, rank):
        yield Held(gradients=common.gradients), [hold("transients", sent_last_bytes(job, rank))]
    sends = job.plan.zero == 2 and not job.plan.splits_backward
    others = common.turns[0].others if sends else 0.0
    gradients = last_message_bytes(job, rank, common.gradients)
    yield Held(gradients=gradients, activations=others, transients=common.turns[-1].always), []
