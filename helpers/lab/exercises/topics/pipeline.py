"""How the answers about pipelines are judged: by the simulator, on time and on memory."""

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import Action, Schedule, make_schedule
from helpers.engine.pipeline.simulator import Timeline, Times, simulate
from helpers.lab.exercises.judges import (
    NOT_DONE,
    READERS_ERRORS,
    Result,
    incomplete,
    no_function,
    number_of,
    raised,
)

RANKS, SAMPLES = 4, 64  # of 2a's pipeline and of its batch
START = 0.5  # of an action, beside its samples: kernels to start, a message to post
SLOWEST = 1.3 * 3 * SAMPLES  # a sample's forward takes 1, its backward 2
ROOM = 16  # samples whose activations fit on a rank

SIZES = ((2, 4), (4, 8), (3, 7), (4, 2), (8, 12))  # ranks and micro-batches that 2b and 2c get
WRITTEN = re.compile(r"([FBIW])(\d{1,9})", re.ASCII)
MOST = 4  # more actions than a micro-batch has: an order may be a generator that never ends

Orders = Callable[[int, int, int], Any]


def try_plan(schedule: str, microbatches: int) -> Timeline:
    """A step of 2a's pipeline: 64 samples over 4 ranks.

    One unit of time is a sample's forward on a rank; every action takes half a unit more. One unit
    of memory is what a sample's forward keeps on a rank.

    Raises:
        UserError: there is no such schedule, or the batch makes no such parts.
    """
    if microbatches > SAMPLES:  # a schedule of a billion would not end
        raise UserError(f"{SAMPLES} samples make at most {SAMPLES} micro-batches")
    order = make_schedule(schedule, RANKS, microbatches)
    if SAMPLES % microbatches:
        raise UserError(f"{SAMPLES} samples make no {microbatches} equal micro-batches")
    part = SAMPLES / microbatches / (order.stages // order.pp)
    forward, backward = part + START, 2 * part + START
    times = Times(forward, forward, forward, backward_s=backward)
    return simulate(order, times, activation_bytes=part)


def plan_choice(answer: Any) -> Result:
    """2a: {schedule, microbatches} that keep within SLOWEST and ROOM."""
    keys = ("schedule", "microbatches")
    if lacking := incomplete(answer, keys):
        return lacking
    count = number_of(answer["microbatches"])
    if count is None or count != int(count):
        return Result(words="microbatches is not a whole number.")
    try:
        step = try_plan(str(answer["schedule"]), int(count))
    except UserError as error:
        return Result(words=f"{error}.")
    most = max(step.peak_bytes)
    seen = f"The step takes {step.makespan_s:.4g} and a rank keeps {most:.4g} samples"
    wrong = []
    if step.makespan_s > SLOWEST:
        wrong.append("too slow")
    if most > ROOM:
        wrong.append("too much")
    if wrong:
        return Result(words=f"{seen}: {', and '.join(wrong)}.")
    return Result(True, f"{seen}; {step.bubble:.1%} of the step is waiting.")


def one_f_one_b(answer: Any) -> Result:
    """2b: the reader's order(rank, ranks, microbatches), as fast as 1f1b and holding no more."""
    return _judge(answer, "1f1b", by_rank=True)


def zero_bubble(answer: Any) -> Result:
    """2c: the same with the backward in halves, as fast as zero-bubble (ZB-H1)."""
    return _judge(answer, "zero-bubble", by_rank=False)


def _judge(order: Any, name: str, by_rank: bool) -> Result:
    """Hold the reader's orders against the engine's: on each rank, or on the fullest."""
    if not callable(order):
        return no_function(order)
    for ranks, microbatches in SIZES:
        where = f"{ranks} ranks, {microbatches} micro-batches:"
        try:
            schedule = _schedule(order, ranks, microbatches)
            if schedule is None:
                return NOT_DONE
            engines = make_schedule(name, ranks, microbatches)
            _check_kinds(schedule, engines)
            step = simulate(schedule)
        except UserError as error:
            return Result(words=f"{where} {error}.")
        known = simulate(engines)
        words = _too_slow(step, known) or _too_much(step, known, by_rank)
        if words:
            return Result(words=f"{where} {words}")
    sizes = ", ".join(f"{ranks} x {microbatches}" for ranks, microbatches in SIZES)
    return Result(True, f"As fast as the engine's {name}, and no rank holds more: {sizes}.")


def _schedule(order: Orders, ranks: int, microbatches: int) -> Schedule | None:
    """The reader's orders as a schedule; None where there are none yet.

    Raises:
        UserError: what is wrong with how they are written.
    """
    actions = []
    for rank in range(ranks):
        try:
            returned = order(rank, ranks, microbatches)
            if returned is None:
                return None
            written = [str(action) for action in islice(returned, MOST * microbatches)]
        except READERS_ERRORS as error:
            raise UserError(f"it {raised(error)}") from None
        if len(written) == MOST * microbatches:
            raise UserError(f"rank {rank} has {MOST * microbatches} actions or more")
        actions.append(tuple(_action(text, rank) for text in written))
    return Schedule("your schedule", tuple(actions), tuple(range(ranks)), microbatches)


def _action(text: str, rank: int) -> Action:
    parts = WRITTEN.fullmatch(text)
    if parts is None:
        raise UserError(f"an action is written F0, B0, I0 or W0, not {text!r:.40}")
    kind, microbatch = parts.groups()
    return Action(kind, rank, int(microbatch))


def _check_kinds(schedule: Schedule, engines: Schedule) -> None:
    """Raise a UserError if backwards are halved where the engine's are whole: that is as fast."""
    own, known = ({one.kind for rank in each.ranks for one in rank} for each in (schedule, engines))
    if own - known:
        raise UserError(f"{engines.name} has no {min(own - known)}: a backward is whole there, B")


def _too_slow(step: Timeline, known: Timeline) -> str:
    if step.makespan_s <= known.makespan_s + 1e-9:
        return ""
    return f"a step takes {step.makespan_s:g}, and {known.makespan_s:g} is possible."


def _too_much(step: Timeline, known: Timeline, by_rank: bool) -> str:
    most = max(known.peak_bytes)
    for rank, (peak, known_peak) in enumerate(zip(step.peak_bytes, known.peak_bytes)):
        limit = known_peak if by_rank else most
        if peak > limit:
            return f"rank {rank} holds {peak:g} micro-batches at once, and {limit:g} will do."
    return ""
