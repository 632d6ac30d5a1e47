"""The backwards of a pipeline rank at which most can be held, and what is there when each begins:
a walk along the rank's own order.

for turn in turns(job, rank): turn.stage, turn.whole, turn.messages
"""

from collections.abc import Iterator
from functools import lru_cache
from operator import ge
from typing import NamedTuple

from helpers.engine.pipeline.runner import AHEAD
from helpers.engine.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Actions,
    rank_actions,
)
from helpers.planner.memory.gathered_ahead import GatheredAhead, several_units
from helpers.planner.model.training_job import Job

CHANGE = {FORWARD: (1, 0), BACKWARD: (-1, 0), INPUT: (-1, 1), WEIGHT: (0, -1)}  # whole, halved


class Turn(NamedTuple):
    """A backward of one micro-batch, or the half of it that makes the weights' gradients.

    stage: whose; place: which of the rank's that is, in the model's order.
    kind: as an Action's.
    summed, ended: has each of the rank's stages gradients of blocks; and of what is in none?
    whole: micro-batches of each stage whose backward is still to come, this one included.
    halved: those whose weights' gradients are.
    messages: hidden states and gradients that are on their way or wait, without the gradient that
        this backward begins with.
    takes: does it begin with a gradient that a stage sent?
    previous: the place of the backward before it, -1 for the first.
    again: has there been no forward since? fresh: has there been one alone?
    ahead: of the rank's other stages, does the last unit of blocks wait, which ZeRO-3 has gathered?
    gathers: the place of the stage whose last unit it gathers so, or -1.
    """

    stage: int
    place: int
    kind: str
    summed: tuple[bool, ...]
    ended: tuple[bool, ...]
    whole: tuple[int, ...]
    halved: tuple[int, ...]
    messages: int
    takes: bool
    previous: int
    again: bool
    fresh: bool
    ahead: tuple[bool, ...]
    gathers: int


def turns(job: Job, rank: int) -> tuple[Turn, ...]:
    """Of pipeline rank `rank`. Of those of one stage that find the same gradients, only the ones
    with most in flight."""
    rooted = bool(job.end_parameters(rank))
    return _turns(_order_of(job, rank), job.rank_of, several_units(job, rank, rooted), rooted)


def leading_forwards(job: Job, rank: int) -> int:
    """Before the first backward of a pipeline rank."""
    return _leading_forwards(_order_of(job, rank))


class OrderOf(NamedTuple):
    """Which rank of which pipeline; as rank_actions takes it."""

    name: str
    rank: int
    pp: int
    microbatches: int
    virtual: int


def _order_of(job: Job, rank: int) -> OrderOf:
    plan = job.plan
    name = plan.schedule if plan.pp > 1 else "1f1b"
    return OrderOf(name, rank, plan.pp, job.microbatches, len(job.rank_of) // plan.pp)


@lru_cache(maxsize=4096)
def _leading_forwards(order: OrderOf) -> int:
    return [action.kind == FORWARD for action in rank_actions(*order)].index(False)


def in_halves(job: Job, rank: int) -> bool:
    """Are gradients of weights made later than those of inputs? Not where no rank waits for the
    inputs', the first of `zero-bubble`."""
    return job.plan.splits_backward and (rank > 0 or job.plan.schedule != "zero-bubble")


@lru_cache(maxsize=4096)
def _turns(
    order: OrderOf, rank_of: tuple[int, ...], several: tuple[bool, ...], rooted: bool
) -> tuple[Turn, ...]:
    alike: dict[tuple, list[Turn]] = {}
    gathered = GatheredAhead(several, rooted)
    for turn in dict.fromkeys(_walk(rank_actions(*order), rank_of, order.rank, gathered)):
        others = alike.setdefault(
            (turn.place, turn.kind, turn.summed, turn.ended, turn.previous, turn.gathers), []
        )
        if not any(_holds(other, turn) for other in others):
            others[:] = [other for other in others if not _holds(turn, other)] + [turn]
    return tuple(turn for some in alike.values() for turn in some)


def _holds(one: Turn, other: Turn) -> bool:
    """Does one hold all that the other does?"""
    return all(map(ge, _held_by(one), _held_by(other)))


def _held_by(turn: Turn) -> tuple[int, ...]:
    return *turn.whole, *turn.halved, turn.messages, turn.again, turn.fresh, *turn.ahead


def _walk(
    actions: Actions, rank_of: tuple[int, ...], rank: int, gathered: GatheredAhead
) -> Iterator[Turn]:
    """Every backward, in the rank's order."""
    owned = [stage for stage, owner in enumerate(rank_of) if owner == rank]
    places = {stage: i for i, stage in enumerate(owned)}
    whole, halved = [0] * len(places), [0] * len(places)
    summed, ended = [False] * len(places), [False] * len(places)
    passed_by = {
        (kind, stage): _passed(kind, stage, rank_of) for kind in CHANGE for stage in places
    }
    own = [passed_by[action.kind, action.stage] for action in actions]
    waiting = sent = 0  # messages to itself; is one to another rank still there?
    previous, forwards = -1, 0  # since then
    for index, (kind, stage, _) in enumerate(actions):
        place, passed = places[stage], own[index]
        waiting -= passed.from_itself
        coming = [later.from_other for later in own[index + 1 : index + 1 + AHEAD]]
        if kind != WEIGHT:
            gathered.uses(place)
        ahead = tuple(gathered.waiting)
        gathers = gathered.backward(place) if kind in (BACKWARD, INPUT) else -1
        if kind != FORWARD or (forwards == 0 <= previous):
            yield Turn(
                stage,
                place,
                kind,
                tuple(summed),
                tuple(ended),
                tuple(whole),
                tuple(halved),
                messages=sum(coming) + waiting + sent,
                takes=kind not in (FORWARD, WEIGHT) and stage + 1 < len(rank_of),
                previous=previous,
                again=forwards == 0,
                fresh=forwards == 1,
                ahead=ahead,
                gathers=gathers,
            )
        waiting, sent = waiting + passed.to_itself, sent or passed.to_other
        more_whole, more_halved = CHANGE[kind]
        whole[place] += more_whole
        halved[place] += more_halved
        ended[place] |= kind != FORWARD
        summed[place] |= kind not in (FORWARD, INPUT)
        if kind == FORWARD:
            forwards += 1
            gathered.forward(place)
        elif kind != WEIGHT:
            previous, forwards = place, 0


class Passed(NamedTuple):
    """Where the message of an action comes from, and where its result goes."""

    from_itself: bool
    from_other: bool
    to_itself: bool
    to_other: bool


def _passed(kind: str, stage: int, rank_of: tuple[int, ...]) -> Passed:
    if kind == WEIGHT:
        return Passed(False, False, False, False)
    before, after = (stage - 1, stage + 1) if kind == FORWARD else (stage + 1, stage - 1)
    comes = rank_of[before] if 0 <= before < len(rank_of) else None
    goes = rank_of[after] if 0 <= after < len(rank_of) else None
    rank = rank_of[stage]
    others = (None, rank)
    return Passed(comes == rank, comes not in others, goes == rank, goes not in others)
