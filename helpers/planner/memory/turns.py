"""The backwards of a pipeline rank at which most can be held, and what is there when each begins:
a walk along the rank's own order.

for turn in turns(job, rank): turn.stage, turn.whole, turn.messages
"""

from collections.abc import Iterator
from functools import lru_cache
from operator import ge
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.engine.pipeline.runner import AHEAD
from helpers.engine.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Actions,
    rank_actions,
)
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
    return _turns(_order_of(job, rank), job.rank_of, _gathering(job, rank, rooted), rooted)


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
    return OrderOf(name, rank, plan.pp, job.microbatches, plan.stages // plan.pp)


@lru_cache(maxsize=4096)
def _leading_forwards(order: OrderOf) -> int:
    return [action.kind == FORWARD for action in rank_actions(*order)].index(False)


def in_halves(job: Job, rank: int) -> bool:
    """Are gradients of weights made later than those of inputs? Not where no rank waits for the
    inputs', the first of `zero-bubble`."""
    return job.plan.splits_backward and (rank > 0 or job.plan.schedule != "zero-bubble")


def _gathering(job: Job, rank: int, rooted: bool) -> tuple[bool, ...]:
    """Of each stage, has it several units of blocks? Nothing where none is gathered ahead."""
    stages = job.stages_of(rank)
    if job.plan.zero != 3 or (rooted and len(stages) == 1):
        return ()
    size = group_size(job.plan.activation)
    return tuple(job.layers[stage] > size for stage in stages)


@lru_cache(maxsize=4096)
def _turns(
    order: OrderOf, rank_of: tuple[int, ...], several: tuple[bool, ...], rooted: bool
) -> tuple[Turn, ...]:
    alike: dict[tuple, list[Turn]] = {}
    gathered = _Ahead(several, rooted)
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


class _Ahead:
    """What fully_shard gathers ahead in the backwards of a rank: what was used before, in the order
    of the forwards. With a stage's first unit of blocks that is the last one of the forward before,
    whatever stage that was of. Where the rank has a part of the model that is in no block, every
    forward ends with that part: it comes before a first unit, and is there; and with it comes the
    last unit of the latest forward.

    Args:
        several: of each stage, has it several units? Of none where nothing is gathered so.
        rooted: has the rank such a part?

    Attributes:
        waiting: of each stage, was its last unit gathered so, and waits?
    """

    def __init__(self, several: tuple[bool, ...], rooted: bool) -> None:
        self.several, self.rooted = several, rooted
        self.waiting = [False] * len(several)
        self.forwards: list[int] = []  # the places of their stages
        self.own: list[list[int]] = [[] for _ in several]  # which of them were a stage's

    def forward(self, place: int) -> None:
        self.own[place].append(len(self.forwards))
        self.forwards.append(place)

    def backward(self, place: int) -> int:
        """The place of the stage that is gathered, or -1. Of two forwards that wait, the latest
        counts, whichever is on its way back."""
        before = self.forwards.pop() if self.rooted else self._before(place)
        held = before == place and (self.rooted or not self.several[place])
        if before < 0 or held or self.waiting[before]:
            return -1
        self.waiting[before] = True
        return before

    def _before(self, place: int) -> int:
        number = self.own[place].pop()
        return self.forwards[number - 1] if number else -1


def _walk(
    actions: Actions, rank_of: tuple[int, ...], rank: int, gathered: _Ahead
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
    several = gathered.several
    for index, (kind, stage, _) in enumerate(actions):
        place, passed = places[stage], own[index]
        waiting -= passed.from_itself
        coming = [later.from_other for later in own[index + 1 : index + 1 + AHEAD]]
        if kind != WEIGHT and several:
            gathered.waiting[place] = False  # it computes with it
        ahead = tuple(gathered.waiting)
        gathers = gathered.backward(place) if kind in (BACKWARD, INPUT) and several else -1
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
            if several:
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
