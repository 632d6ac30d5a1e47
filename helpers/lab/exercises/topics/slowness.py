"""How the answers about slow runs are judged."""

import random
from collections.abc import Iterator
from typing import Any

from helpers.lab.exercises.judges import (
    Expected,
    Result,
    incomplete,
    judge_function,
    judge_numbers,
    near,
    number_of,
)
from helpers.planner.cost import money
from helpers.planner.hardware.lookup import price
from helpers.trace.findings import THRESHOLDS
from helpers.trace.intervals import length, union, without

Intervals = list[tuple[float, float]]

# what scripts/measure/slow_run.py plants, by case
PLANTED = {"a": "straggler", "b": "input", "c": "communication", "d": "bubble", "e": "launch"}
# what to look at, by what was said
LOOK = {
    "straggler": "does one rank work longer than the other, in forward or backward?",
    "input": "how long is the range data, on any rank?",
    "communication": "are the messages long where both ranks have done their work, and only there?",
    "bubble": "is this a pipeline, with the range wait?",
    "launch": "how large are the operations: how many tokens has a batch?",
    "memory": "how near is the peak to the limit?",
}
INSTANCE, INSTANCES, STEPS, STEP_S, WAITING = "p4d.24xlarge", 16, 12_000, 0.4, 0.3


def diagnosis(answer: Any) -> Result:
    """7a: by case, the kind of finding."""
    if lacking := incomplete(answer, PLANTED):
        return lacking
    words = []
    for case, right in PLANTED.items():
        said = answer[case]
        if isinstance(said, str) and said == right:
            continue
        if not isinstance(said, str) or said not in THRESHOLDS:
            words.append(f"case {case}: a kind is one of {', '.join(THRESHOLDS)}.")
        else:
            words.append(f"case {case}, {said}: {LOOK[said]}")
    praise = "Five reasons, each with its own mend."
    return Result(words=" ".join(words)) if words else Result(True, praise)


def exposed(answer: Any) -> Result:
    """7b: exposed(messages, computing), against arithmetic of intervals."""
    praise = "What counts is when nothing is computed, however many messages are under way."
    return judge_function(answer, _cases(), _look, praise)


def _cases() -> Iterator[tuple[Intervals, Intervals]]:
    yield [(0.0, 2.0)], [(1.0, 3.0)]
    yield [(0.0, 2.0), (1.0, 4.0)], [(3.5, 5.0)]  # two messages at a time
    yield [(1.0, 2.0)], []
    yield [(1.0, 2.0)], [(0.0, 3.0)]
    yield [(0.0, 4.0)], [(1.0, 2.0), (1.5, 3.0)]
    draw = random.Random(0)
    for _ in range(5):
        spans = [(start, start + draw.random()) for start in (4 * draw.random() for _ in range(8))]
        yield spans[:4], spans[4:]


def _look(found: Any, messages: Intervals, computing: Intervals) -> str:
    number = number_of(found)
    if number is None:
        return "A number of seconds is wanted."
    busy = union(computing)
    right = length(without(union(messages), busy))
    if abs(number - right) < 1e-9:
        return ""
    case = f"messages {_short(messages)}, computing {_short(computing)}: "
    if near(number, length(union(messages))):
        return f"{case}that is all the time of the messages; some of it is hidden."
    if near(number, sum(length(without([one], busy)) for one in messages)):
        return f"{case}two messages at a time are one wait: count those seconds once."
    if number < 0:
        return f"{case}seconds cannot be negative."
    return f"{case}not right."


def _short(spans: Intervals) -> str:
    return "[" + ", ".join(f"({start:.3g}, {end:.3g})" for start, end in spans) + "]"


def most_gained(answer: Any) -> Result:
    """7c: {times, usd}: how much faster a run is at most, and what that saves."""
    saved_s = STEPS * STEP_S * WAITING
    expected = {
        "times": Expected(1 / (1 - WAITING)),
        "usd": Expected(money(saved_s, price(INSTANCE).usd_per_hour, INSTANCES)),
    }
    praise = "That is the most that a mend can gain: know it before you begin."
    return judge_numbers("7c most gained", answer, expected, praise)
