"""A training step as stretches of time: what a rank holds when each begins, and what it holds and
frees in it. Only those are listed that can have the step's fullest moment.

    for start, events in stretches(job, rank, gradients): peak(start, events)
"""

import math
from collections.abc import Iterator

from helpers.engine.pipeline.schedules import FORWARD, INPUT, WEIGHT
from helpers.planner.memory.activations import kept_bytes, waiting_bytes
from helpers.planner.memory.components import (
    added_table_bytes,
    dealt_gradient_bytes,
    end_bytes,
    gathered_bytes,
    last_bytes,
    late_matrix_bytes,
    loss_work_bytes,
    lowered_bytes,
    reduced_bytes,
    root_bytes,
    sent_bytes,
    shared_message_bytes,
    stage_message_bytes,
    swapped_bytes,
    table_work_bytes,
    unit_gradient_bytes,
    waiting_head_bytes,
    working_bytes,
)
from helpers.planner.memory.gradient_messages import (
    Made,
    first_sent_bytes,
    last_coming_bytes,
    last_message_bytes,
    made_bytes,
    message_work_bytes,
    sent_last_bytes,
    stage_messages,
)
from helpers.planner.memory.moments import Moment, moments
from helpers.planner.memory.timeline import Event, Held, free, hold
from helpers.planner.memory.turns import in_halves
from helpers.planner.model.training_job import Job

Stretch = tuple[Held, list[Event]]


def stretches(job: Job, rank: int, gradients: float) -> Iterator[Stretch]:
    """Of pipeline rank `rank`, in no order of time.

    Args:
        gradients: bytes of the rank's, when all are there.
    """
    for moment in moments(job, rank, gradients):
        turn = moment.turn
        if turn.kind == FORWARD:
            yield _forward(moment)
            continue
        if turn.kind == WEIGHT:
            yield _weights(moment)
            continue
        if moment.last:
            yield _loss(moment)
        if moment.units.blocks:
            yield from _backward(moment)
        if turn.stage == 0:
            yield from _table(moment)
        if moment.sends:
            yield _last_message(moment)
    yield from _end(job, rank, gradients)


def _loss(now: Moment) -> Stretch:
    job = now.job
    gathered = gathered_bytes(job, now.units.gathered[0]) if now.units.blocks else 0.0
    # no block frees the buffer from which a forward copied what is in no block
    kept = now.turn.fresh and not now.units.blocks and not job.made_late
    buffer = root_bytes(job, now.rank) if kept else 0.0
    start = Held(
        gradients=now.before,
        activations=now.activations,
        logits=now.ends,
        transients=now.always + now.left_over + buffer,
    )
    return start, [hold("logits", end_bytes(job)), hold("logits", loss_work_bytes(job, gathered))]


def _backward(now: Moment) -> Iterator[Stretch]:
    """Of one unit of blocks, where it can be the fullest of all of them."""
    job, units = now.job, now.units
    head = waiting_head_bytes(job, now.rank) if now.last else 0.0
    for done in _turning_points(now):
        over, to_come = sum(units.blocks[:done]), sum(units.blocks[done:])
        made = _made_bytes(now, done)
        sent = sent_bytes(job, now.sent[done - 1]) if done else now.left_over
        waiting = over * waiting_bytes(job) if now.turn.kind == INPUT else 0.0
        left = min(now.activations, now.others + kept_bytes(job, to_come)) + waiting
        start = Held(
            gradients=now.before + made.summed,
            activations=left if done else now.activations,
            logits=now.ends + head,
            # at first it is the gradient of the first unit's result, which that works with
            transients=now.always + sent + made.on_the_way + (_there(now) if done else 0.0),
        )
        yield start, _unit_events(now, done, sent)


def _there(now: Moment) -> float:
    """Beside all units but the first: the gradient that came, and what that one gathered."""
    return now.taken + (now.gathers if now.rooted else 0.0)


def _coming(now: Moment, done: int) -> float:
    """What fully_shard gathers beside a unit: the one before it, and with one of them perhaps
    another stage's."""
    later = now.units.gathered[done + 1 :]
    coming = gathered_bytes(now.job, later[0]) if later else 0.0
    gathers = not done if now.rooted else not later
    return coming + (now.gathers if gathers else 0.0)


def _turning_points(now: Moment) -> list[int]:
    """How many units' backward is over where the next one's can be the fullest: none; one, if the
    second is larger, or ZeRO-3 has gradients of the first on their way; those that fill one, two
    and three messages; or all but two or one, for between them activations go as evenly as
    gradients come, or as what waits for those of weights."""
    job, units = now.job, now.units
    count = len(units.blocks)
    if job.shape.kinds:  # which is the largest is not known
        return list(range(count))
    points = {0, 1} if job.plan.zero == 3 or units.blocks[0] < units.blocks[-1] else {0}
    if now.sends:
        each, above = units.parameters[-1], _made(now, 0)
        first = stage_messages(job, now.turn.stage)[:3]
        points |= {math.ceil((message.end - above) / each) - 1 for message in first}
    if now.turn.kind == INPUT:
        points.add(count - 1)
    elif not now.added:
        points |= {count - 2, count - 1}
    return sorted(point for point in points if 0 <= point < count)


def _made(now: Moment, done: int) -> float:
    """Gradients of the stage that are there when the backward of so many units is over: theirs, if
    they do not come later, and those of the norm and head above if these do not wait."""
    job = now.job
    made = sum(now.made[:done])
    if job.plan.zero == 3 or not now.last:
        return made
    end = job.end_parameters(now.rank) - job.begin_parameters(now.rank)
    matrix = job.vocab_rows * job.shape.hidden
    waits = waiting_head_bytes(job, now.rank) and end > matrix
    return made + end - (matrix if waits else 0)


def _made_bytes(now: Moment, done: int) -> Made:
    """Of the gradients that this backward has made, after so many units: more that is summed than
    before; and what is on its way."""
    elements = _made(now, done)
    if not now.sends:
        summed = now.gradients * elements / now.job.parameters_of(now.rank)
        return Made(0.0 if now.added else summed, 0.0)
    made = made_bytes(now.job, now.turn.stage, elements, now.gradients)
    return Made(0.0 if now.added else made.summed, made.on_the_way)


def _unit_events(now: Moment, done: int, sent: float) -> list[Event]:
    """A unit's backward.

    Args:
        done: units whose backward is over.
        sent: bytes that were sent before and are freed when its own gradients are sent.
    """
    job, rank = now.job, now.rank
    blocks, parameters = now.units.blocks[done], now.units.gathered[done]
    gathered, working = gathered_bytes(job, parameters), working_bytes(job, rank, blocks)
    if now.sends and not done:  # later two messages are on their way already
        working += first_sent_bytes(job, now.turn.stage, _made(now, 0))
    coming = _coming(now, done)
    sending = lowered_bytes(job, coming)
    # no forward has gathered what is in no block: it comes after the unit, but for the loss
    root = root_bytes(job, rank) if now.turn.again and not done and not now.last else 0.0
    events = [
        free("transients", root),
        hold("transients", 2 * gathered),  # a buffer, and the parameters that are copied out of it
        free("transients", gathered),
        hold("transients", coming + sending),
        free("transients", sending),
        hold("transients", 2 * root),
        free("transients", root),
        hold("transients", working),
        free("transients", working),
        free("activations", min(kept_bytes(job, blocks), now.activations)),
    ]
    if now.turn.kind == INPUT:
        last = last_bytes(job, halved=True)
        events += [hold("activations", blocks * waiting_bytes(job)), hold("transients", last)]
        if not now.made[done]:
            return events
        events.append(free("transients", last))
    if job.plan.ep > 1 and not now.added:
        events.append(hold("gradients", dealt_gradient_bytes(job, now.units, done)))
    if not gathered:
        return [*events, *_gradient_events(now, done)]
    gradients = unit_gradient_bytes(job, now.sent[done])
    return [
        *events,
        hold("transients", gradients),
        free("transients", sent + gathered + gradients),
        hold("transients", reduced_bytes(job, now.sent[done])),
    ]


def _gradient_events(now: Moment, done: int) -> list[Event]:
    """A unit's gradients, where ZeRO-3 does not gather it. What is added to earlier ones takes no
    memory, unless it is sent."""
    if now.added and not now.sends:
        return []
    begun, grown = _made_bytes(now, done), _made_bytes(now, done + 1)
    before, after = _made(now, done), _made(now, done + 1)
    last = last_bytes(now.job)
    return [
        hold("transients", grown.on_the_way - begun.on_the_way),
        hold("gradients", grown.summed - begun.summed),
        hold("transients", last),
        free("transients", last),
        hold("transients", message_work_bytes(now.job, now.turn.stage, before, after)),
    ]


def _weights(now: Moment) -> Stretch:
    """What waits becomes the gradients of weights, a matrix at a time."""
    job, blocks = now.job, sum(now.units.blocks)
    made = now.gradients * sum(now.made) / job.parameters_of(now.rank)
    matrix = late_matrix_bytes(job) if blocks else 0.0
    start = Held(gradients=now.before, activations=now.activations, transients=now.always)
    return start, [
        hold("transients", matrix),
        free("transients", matrix),
        free("activations", blocks * waiting_bytes(job)),
        hold("gradients", 0.0 if now.added else made),
        hold("transients", matrix),
    ]


def _forward(now: Moment) -> Stretch:
    """After a backward ZeRO-3 gathers anew: the forward's first block, while the buffer from which
    what is in no block was copied is still there."""
    job = now.job
    start = Held(
        gradients=now.before,
        activations=now.activations,
        logits=now.ends,
        transients=now.always + now.left_over,
    )
    gathered = gathered_bytes(job, now.units.gathered[-1]) if now.units.blocks else 0.0
    times = 1 if job.made_late else 2  # gathered, and copied out
    return start, [hold("transients", root_bytes(job, now.rank) + times * gathered)]


def _table(now: Moment) -> Iterator[Stretch]:
    """All gradients of the first stage are there, and the embedding's is made."""
    job, rank = now.job, now.rank
    blocks, units = sum(now.units.blocks), len(now.units.blocks)
    made = _made_bytes(now, units)
    if now.sends:  # the positions' too
        last = stage_messages(job, 0)[-1]
        others = max(_made(now, units), last.end - last.elements)
        on_the_way = made_bytes(job, 0, others, now.gradients)
        made = Made(0.0 if now.added else on_the_way.summed, on_the_way.on_the_way)
    waiting = blocks * waiting_bytes(job) if now.turn.kind == INPUT else 0.0
    # freed by the backward of a block that gathers, or by the forward before
    freed = now.units.blocks or job.layers_of(rank) or not now.turn.again
    root = root_bytes(job, rank) if freed else 0.0
    coming = 0.0 if now.sends else last_coming_bytes(job, 0, sum(now.units.parameters))
    start = Held(
        gradients=now.before + made.summed,
        activations=now.others + waiting,
        transients=now.always - root + made.on_the_way + now.taken + coming,
    )
    yield start, [hold("transients", table_work_bytes(job, rank, not now.added))]
    if job.plan.zero == 3 and now.units.blocks:  # before it is sent, the last block's on their way
        sent = sent_bytes(job, now.sent[-1])
        yield start, [hold("transients", root + sent + added_table_bytes(job, rank))]


def _last_message(now: Moment) -> Stretch:
    """The stage's last message of a micro-batch, while others are in flight."""
    job, stage = now.job, now.turn.stage
    others = now.others if job.plan.zero == 2 else 0.0
    last, before = stage_messages(job, stage)[-1], _made(now, len(now.units.blocks))
    if not job.plan.zero or stage == 0 or before == last.end:
        gradients = last_message_bytes(job, now.rank, now.gradients)
        return Held(gradients=gradients, activations=others, transients=now.always), []
    # it waited for the matrix that is the embedding, too
    made = _made_bytes(now, len(now.units.blocks))
    start = Held(
        gradients=now.before + made.summed,
        activations=others,
        transients=now.always + made.on_the_way,
    )
    copied = message_work_bytes(job, stage, before, last.end)
    waited = job.element_bytes * (last.end - before)
    back = job.sum_bytes * last.elements / job.plan.shards
    return start, [hold("transients", waited + copied + back)]


def _end(job: Job, rank: int, gradients: float) -> Iterator[Stretch]:
    """All gradients are there; those that tensor ranks share are summed, and a matrix that is
    embedding and head has one on two ranks, which they swap."""
    sent = stage_message_bytes(job) if job.plan.pp > 1 else 0.0
    beside = max(shared_message_bytes(job, rank), swapped_bytes(job, rank))
    yield Held(gradients=gradients), [hold("transients", beside)]
    if in_halves(job, rank):
        yield Held(gradients=gradients), [hold("transients", sent_last_bytes(job, rank))]
    last = last_message_bytes(job, rank, gradients)
    yield Held(gradients=last, transients=root_bytes(job, rank) + sent), []
