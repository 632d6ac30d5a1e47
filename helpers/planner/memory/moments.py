"""The moments of a step at which a rank's turns begin, in bytes: of turns that differ in what they
find alone, the one that finds most.

for now in moments(job, rank, gradients): now.turn, now.before, now.activations
"""

from collections.abc import Iterator
from typing import NamedTuple

from helpers.engine.pipeline.schedules import BACKWARD, FORWARD, INPUT
from helpers.planner.memory.activations import stage_bytes, stays_bytes, waiting_bytes
from helpers.planner.memory.components import (
    end_bytes,
    gathered_bytes,
    left_over_bytes,
    root_bytes,
    stage_ends,
    stage_message_bytes,
)
from helpers.planner.memory.gradient_messages import sends_now
from helpers.planner.memory.turns import Turn, turns
from helpers.planner.model.training_job import Job
from helpers.planner.model.units import Units, made_in, sent_in, units_of


class Moment(NamedTuple):
    """A turn in bytes: what is there when it begins.

    job, rank, turn: whose.
    gradients: of the rank, when all are there; before: those that are.
    activations: of all micro-batches in flight; others: of all but this.
    ends: of the others, what they keep at the end of the model.
    always: parameters that stay gathered, and messages between stages.
    left_over: what the backward before left behind.
    taken: the gradient that it begins with.
    units: of the stage, in the order of its backward; made, sent: of each, the parameters whose
        gradients the turn makes, and those of them that ZeRO-3 sends.
    sends: are messages of gradients sent in it?
    gathers: bytes of another backward's unit that is gathered in it: with its first unit where the
        rank has a part of the model that is in no block, or else with its last.
    """

    job: Job
    rank: int
    turn: Turn
    gradients: float
    before: float
    activations: float
    others: float
    ends: float
    always: float
    left_over: float
    taken: float
    units: Units
    made: list[float]
    sent: list[float]
    sends: bool
    gathers: float

    @property
    def rooted(self) -> bool:
        """Has the rank a part of the model that is in no block?"""
        return bool(self.job.end_parameters(self.rank))

    @property
    def last(self) -> bool:
        """Is it the backward of the model's last stage?"""
        return self.turn.stage == len(self.job.layers) - 1

    @property
    def added(self) -> bool:
        """Are its gradients added to earlier ones?"""
        turn = self.turn
        return (turn.ended if turn.kind == INPUT else turn.summed)[turn.place]


class Sizes(NamedTuple):
    """Bytes of one of the rank's stages: what a micro-batch keeps whole; what of it waits for the
    gradients of weights; gradients of its blocks, and those that come before, of what is in none
    and of experts; what its backward leaves behind; its last unit of blocks, gathered."""

    whole: float
    halved: float
    summed: float
    ended: float
    left_over: float
    unit: float


class Begun(NamedTuple):
    """What a turn finds, in bytes: activations, gradients, and what is gathered ahead; and most
    that it can come to, were its own gradients all that comes."""

    activations: float
    before: float
    ahead: float
    held: float
    most: float


def moments(job: Job, rank: int, gradients: float) -> Iterator[Moment]:
    """Of pipeline rank `rank`.

    Args:
        gradients: bytes of the rank's, when all are there.
    """
    message, sends = stage_message_bytes(job), sends_now(job, rank)
    sizes = [_sizes(job, rank, stage, gradients) for stage in job.stages_of(rank)]
    always, stays = root_bytes(job, rank), stays_bytes(job, job.layers_of(rank))
    end = end_bytes(job) if job.rank_of[-1] == rank else 0.0
    for turn, begun in _fullest(job, rank, sizes, sends):
        own = sizes[turn.place].whole if turn.kind in (BACKWARD, INPUT) else 0.0
        alone, units = sum(turn.whole) + sum(turn.halved) == 1, units_of(job, turn.stage)
        yield Moment(
            job=job,
            rank=rank,
            turn=turn,
            gradients=gradients,
            before=begun.before,
            activations=begun.activations + stays,
            others=0.0 if alone and own else begun.activations + stays - own,
            ends=end * max(0, turn.whole[-1] - 1),
            always=always + turn.messages * message + begun.ahead,
            left_over=sizes[turn.previous].left_over if turn.previous >= 0 else 0.0,
            taken=message if turn.takes else 0.0,
            units=units,
            made=made_in(job, turn.stage, units, turn.kind),
            sent=sent_in(job, turn.stage, units, turn.kind),
            sends=sends,
            gathers=sizes[turn.gathers].unit if turn.gathers >= 0 else 0.0,
        )


def _fullest(job: Job, rank: int, sizes: list[Sizes], sends: bool) -> Iterator[tuple[Turn, Begun]]:
    """Of the turns of alike stages, the one that finds most, and so of those whose gradients are
    the first, unless the others hold more than these can come to."""
    message = stage_message_bytes(job)
    added: dict[tuple, tuple[Turn, Begun]] = {}
    first: dict[tuple, tuple[Turn, Begun]] = {}
    for turn in turns(job, rank):
        if turn.kind == FORWARD and job.plan.zero != 3:
            continue
        begun = _begun(turn, sizes, message)
        ends = turn.stage == 0, turn.stage == len(job.layers) - 1
        # what ZeRO-3 gathers again is there for a moment, and most in flight for another
        key = turn.kind, job.layers[turn.stage], *ends, turn.again and job.plan.zero == 3
        there = turn.ended if turn.kind == INPUT else turn.summed
        found = added if there[turn.place] else first
        if key not in found or begun.held > found[key][1].held:
            found[key] = turn, begun
    yield from added.values()
    for key, (turn, begun) in first.items():
        if sends or key not in added or begun.most > added[key][1].held:
            yield turn, begun


def _begun(turn: Turn, sizes: list[Sizes], message: float) -> Begun:
    activations = before = 0.0
    for whole, halved, summed, ended, size in zip(
        turn.whole, turn.halved, turn.summed, turn.ended, sizes, strict=True
    ):
        activations += whole * size.whole + halved * size.halved
        before += summed * size.summed + ended * size.ended
    ahead = sum(size.unit for waits, size in zip(turn.ahead, sizes) if waits)
    held = activations + before + ahead + turn.messages * message
    if turn.previous >= 0:
        held += sizes[turn.previous].left_over
    own = sizes[turn.place]
    return Begun(activations, before, ahead, held, held + own.summed + own.ended)


def _sizes(job: Job, rank: int, stage: int, gradients: float) -> Sizes:
    blocks, each = job.layers[stage], gradients / job.parameters_of(rank)
    units, at_once = units_of(job, stage), 0.0
    if job.plan.splits_backward:
        at_once = sum(made_in(job, stage, units, INPUT))
    return Sizes(
        whole=stage_bytes(job.on((stage,)), blocks),
        halved=blocks * waiting_bytes(job) if job.plan.splits_backward else 0.0,
        summed=each * (sum(units.parameters) - at_once),
        ended=each * (stage_ends(job, rank, stage) + at_once),
        left_over=left_over_bytes(job, rank, stage),
        unit=gathered_bytes(job, units.gathered[0] if units.gathered else 0),
    )
