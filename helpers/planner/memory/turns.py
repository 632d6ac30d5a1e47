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
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Schedule,
    known_schedule,
)
from helpers.planner.model.training_job import Job


class Turn(NamedTuple):
    """A backward of one micro-batch, or the half of it that makes the weights' gradients.

    stages: the rank's, in the model's order; place: which of them this is of.
    kind: as an Action's.
    summed, ended: has each of the rank's stages gradients of blocks; and of what is in none?
    whole: micro-batches of each stage whose backward is still to come, this one included.
    halved: those whose weights' gradients are.
    messages: hidden states and gradients that are on their way or wait, without the gradient that
        this backward begins with.
    takes: does it begin with a gradient that a stage sent?
    previous: the place of the backward before it, -1 for the first.
    again: has there been no forward since? fresh: has there been one alone?
    """

    stages: tuple[int, ...]
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

    @property
    def stage(self) -> int:
        return self.stages[self.place]


def turns(job: Job, rank: int) -> tuple[Turn, ...]:
    """Of pipeline rank `rank`. Of those of one stage that find the same gradients, only the ones
    with most in flight."""
    return _turns(*_order_of(job), rank)


def leading_forwards(job: Job) -> tuple[int, ...]:
    """Of each pipeline rank: forwards before its first backward."""
    return _leading_forwards(*_order_of(job))


def _order_of(job: Job) -> tuple[str, int, int, int | None]:
    """The arguments of the schedule."""
    plan = job.plan
    if plan.pp == 1:
        return "1f1b", 1, job.microbatches, None
    return plan.schedule, plan.pp, job.microbatches, plan.virtual_stages or None


@lru_cache(maxsize=4096)
def _leading_forwards(
    name: str, pp: int, microbatches: int, virtual: int | None
) -> tuple[int, ...]:
    ranks = known_schedule(name, pp, microbatches, virtual).ranks
    return tuple([action.kind == FORWARD for action in rank].index(False) for rank in ranks)


def in_halves(job: Job, rank: int) -> bool:
    """Are gradients of weights made later than those of inputs? Not where no rank waits for the
    inputs', the first of `zero-bubble`."""
    return job.plan.splits_backward and (rank > 0 or job.plan.schedule != "zero-bubble")


@lru_cache(maxsize=4096)
def _turns(
    name: str, pp: int, microbatches: int, virtual: int | None, rank: int
) -> tuple[Turn, ...]:
    schedule = known_schedule(name, pp, microbatches, virtual)
    alike: dict[tuple, list[Turn]] = {}
    for turn in dict.fromkeys(_walk(schedule, rank)):
        others = alike.setdefault(
            (turn.place, turn.kind, turn.summed, turn.ended, turn.previous), []
        )
        if not any(_holds(other, turn) for other in others):
            others[:] = [other for other in others if not _holds(turn, other)] + [turn]
    return tuple(turn for some in alike.values() for turn in some)


def _holds(one: Turn, other: Turn) -> bool:
    """Does one hold all that the other does?"""
    mine = (*one.whole, *one.halved, one.messages, one.again, one.fresh)
    return all(
        map(ge, mine, (*other.whole, *other.halved, other.messages, other.again, other.fresh))
    )


def _walk(schedule: Schedule, rank: int) -> Iterator[Turn]:
    """Every backward, in the rank's order."""
    stages = schedule.stages_of(rank)
    whole, halved = [0] * len(stages), [0] * len(stages)
    summed, ended = [False] * len(stages), [False] * len(stages)
    actions = schedule.ranks[rank]
    own = [_passed(action, schedule, rank) for action in actions]
    waiting = sent = 0  # messages to itself; is one to another rank still there?
    previous, forwards = -1, 0  # since then
    for index, (kind, stage, _) in enumerate(actions):
        place, passed = stages.index(stage), own[index]
        waiting -= passed.from_itself
        coming = [later.from_other for later in own[index + 1 : index + 1 + AHEAD]]
        if kind != FORWARD or (forwards == 0 <= previous):
            yield Turn(
                stages,
                place,
                kind,
                tuple(summed),
                tuple(ended),
                tuple(whole),
                tuple(halved),
                messages=sum(coming) + waiting + sent,
                takes=kind not in (FORWARD, WEIGHT) and stage + 1 < schedule.stages,
                previous=previous,
                again=forwards == 0,
                fresh=forwards == 1,
            )
        waiting, sent = waiting + passed.to_itself, sent or passed.to_other
        whole[place] += {FORWARD: 1, WEIGHT: 0}.get(kind, -1)
        halved[place] += {INPUT: 1, WEIGHT: -1}.get(kind, 0)
        ended[place] |= kind != FORWARD
        summed[place] |= kind not in (FORWARD, INPUT)
        if kind == FORWARD:
            forwards += 1
        elif kind != WEIGHT:
            previous, forwards = place, 0


class Passed(NamedTuple):
    """Where the message of an action comes from, and where its result goes."""

    from_itself: bool
    from_other: bool
    to_itself: bool
    to_other: bool


def _passed(action: Action, schedule: Schedule, rank: int) -> Passed:
    kind, stage, _ = action
    if kind == WEIGHT:
        return Passed(False, False, False, False)
    before, after = (stage - 1, stage + 1) if kind == FORWARD else (stage + 1, stage - 1)
    owners = schedule.rank_of
    comes = owners[before] if 0 <= before < len(owners) else None
    goes = owners[after] if 0 <= after < len(owners) else None
    others = (None, rank)
    return Passed(comes == rank, comes not in others, goes == rank, goes not in others)
