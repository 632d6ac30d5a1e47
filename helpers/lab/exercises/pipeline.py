"""How the answers about pipelines are judged: by the simulator, on time and on memory."""

import re
import traceback
from collections.abc import Callable
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import Action, Schedule, make_schedule
from helpers.engine.pipeline.simulator import Timeline, Times, simulate
from helpers.lab.exercises.tensor import NOT_DONE, Result, incomplete, kind_of, number_of

RANKS, SAMPLES = 4, 64  # of 2a's pipeline and of its batch
START = 0.5  # of an action, beside its samples: kernels to start, a message to post
SLOWEST = 1.3 * 3 * SAMPLES  # a sample's forward takes 1, its backward 2
ROOM = 16  # samples whose activations fit on a rank

SIZES = ((2, 4), (4, 8), (3, 7), (4, 2), (8, 12))  # ranks and micro-batches that 2b and 2c get
WRITTEN = re.compile(r"([FBIW])(\d+)")

Orders = Callable[[int, int, int], Any]


def try_plan(schedule: str, microbatches: int) -> Timeline:
    """A step of 2a's pipeline: 64 samples over 4 ranks.

    One unit of time is a sample's forward on a rank; every action takes half a unit more. One unit
    of memory is what a sample's forward keeps on a rank.

    Raises:
        UserError: there is no such schedule, or the batch has too few samples.
    """
    made = make_schedule(schedule, RANKS, microbatches)
    if microbatches > SAMPLES:
        raise UserError(f"{SAMPLES} samples make at most {SAMPLES} micro-batches")
    part = SAMPLES / microbatches / (made.stages // made.pp)
    one, both = part + START, 2 * part + START
    return simulate(made, Times(one, one, one, backward_s=both), activation_bytes=part)


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
    held = max(step.peak_bytes)
    seen = f"The step takes {step.makespan_s:.4g} and a rank keeps {held:.4g} samples"
    if step.makespan_s > SLOWEST and held > ROOM:
        return Result(words=f"{seen}: too slow, and too much.")
    if step.makespan_s > SLOWEST:
        return Result(words=f"{seen}: too slow.")
    if held > ROOM:
        return Result(words=f"{seen}: too much.")
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
        return Result(words=f"A function is wanted, not {kind_of(order)}.")
    for ranks, microbatches in SIZES:
        where = f"{ranks} ranks, {microbatches} micro-batches:"
        made = _read(order, ranks, microbatches)
        if isinstance(made, Result):
            return made if not made.done else Result(words=f"{where} {made.words}")
        try:
            step = simulate(made)
        except UserError as error:
            return Result(words=f"{where} {error}.")
        known = simulate(make_schedule(name, ranks, microbatches))
        words = _too_slow(step, known) or _too_much(step, known, by_rank)
        if words:
            return Result(words=f"{where} {words}")
    sizes = ", ".join(f"{ranks} x {microbatches}" for ranks, microbatches in SIZES)
    return Result(True, f"As fast as the engine's {name}, and no rank holds more: {sizes}.")


def _read(order: Orders, ranks: int, microbatches: int) -> Schedule | Result:
    """The reader's orders as a schedule, or what is wrong with how they are written."""
    found = []
    for rank in range(ranks):
        try:
            given = order(rank, ranks, microbatches)
            written = None if given is None else [str(one) for one in given]
        except Exception as error:  # the reader's code: whatever it raises is shown to them
            where = traceback.extract_tb(error.__traceback__)[-1].lineno
            return Result(words=f"it raised {type(error).__name__}: {error} (line {where}).")
        if written is None:
            return NOT_DONE
        strange = [one for one in written if not WRITTEN.fullmatch(one)]
        if strange:
            return Result(words=f"an action is written F0, B0, I0 or W0, not {strange[0]!r}.")
        parts = [WRITTEN.fullmatch(one).groups() for one in written]
        found.append(tuple(Action(kind, rank, int(i)) for kind, i in parts))
    return Schedule("your schedule", tuple(found), tuple(range(ranks)), microbatches)


def _too_slow(step: Timeline, known: Timeline) -> str:
    if step.makespan_s <= known.makespan_s + 1e-9:
        return ""
    return f"a step takes {step.makespan_s:g}, and {known.makespan_s:g} is possible."


def _too_much(step: Timeline, known: Timeline, by_rank: bool) -> str:
    most = max(known.peak_bytes)
    for rank, (held, limit) in enumerate(zip(step.peak_bytes, known.peak_bytes)):
        limit = limit if by_rank else most
        if held > limit:
            return f"rank {rank} holds {held:g} micro-batches at once, and {limit:g} will do."
    return ""
