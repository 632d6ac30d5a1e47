"""How the answers about compiling and about comparing are judged."""

import math
from typing import Any

from helpers.lab.exercises.judges import (
    Expected,
    Result,
    float_of,
    judge_function,
    judge_numbers,
    kind_of,
    number_of,
)
from helpers.planner.published.compiler_comparison import audit_comparison
from helpers.planner.published.posts import find_post

WITHIN = 0.1  # percent points
# rows, batch, epochs, and whether the last, smaller batch is dropped
EPOCHS = [
    (rows, batch, epochs, drop_last)
    for rows, batch, epochs in (
        (100, 10, 3),
        (103, 10, 3),
        (7, 8, 2),
        (1595, 160, 400),
        (64, 64, 1),
    )
    for drop_last in (False, True)
]
# seconds of compiling, of a step as it is, of a step compiled: where the quotient is whole,
# binary fractions, for which floating point is exact
RACES = (
    (10.0, 0.5, 0.375),
    (10.0, 0.5, 0.2),
    (8.0, 0.75, 0.4),
    (9.0, 1.0, 0.25),
    (1.0, 0.4, 0.1),
    (0.0, 0.3, 0.2),
    (5.0, 0.4, 0.4),
    (5.0, 0.3, 0.4),
)


def published_claims(answer: Any) -> Result:
    """3a: {rate, time, counted} in percent, of the published p4d pair: more samples per second,
    fewer seconds, and more of the samples that were trained on."""
    claims = audit_comparison(find_post("compiler-on-p4d"))
    percents = {
        "rate": claims.reported.percent,
        "time": claims.training.percent,
        "counted": claims.counted.percent,
    }
    expected = {
        name: Expected(percent, tolerance=WITHIN / percent) for name, percent in percents.items()
    }
    words = ", ".join(f"{name} {percent:.1f} %" for name, percent in percents.items())
    return judge_numbers(
        "3a claims", answer, expected, f"{words}: one pair of runs, three numbers."
    )


def trained(answer: Any) -> Result:
    """3b: the reader's trained(rows, batch, epochs, drop_last), counted by hand."""
    praise = "What is dropped is neither trained on nor a step."
    return judge_function(answer, EPOCHS, _look_at_counts, praise)


def _look_at_counts(counts: Any, rows: int, batch: int, epochs: int, drop_last: bool) -> str:
    case = f"{rows} rows in batches of {batch}, {epochs} epochs, drop_last={drop_last}"
    counts = counts.tolist() if hasattr(counts, "tolist") else counts  # an array, or a tensor
    if not isinstance(counts, (tuple, list)) or len(counts) != 2:
        return f"Two numbers are wanted, samples and steps, not {kind_of(counts)}."
    given = tuple(number_of(count) for count in counts)
    samples, steps = _counted(rows, batch, epochs, drop_last)
    if given == (samples, steps):
        return ""
    slips = {
        (steps, samples): "samples come first, then steps.",
        _counted(rows, batch, 1, drop_last): "that is one epoch.",
        _counted(rows, batch, epochs, not drop_last): "that is with drop_last the other way.",
        _counted(rows * epochs, batch, 1, drop_last): "a batch does not go on into the next epoch.",
        (epochs * rows, steps): "what is left of an epoch is not trained on.",
        (samples, epochs * (rows // batch)): "the last, smaller batch is a step too.",
    }
    return f"Not right for {case}: {slips.get(given, 'count one epoch by hand.')}"


def _counted(rows: int, batch: int, epochs: int, drop_last: bool) -> tuple[int, int]:
    """Samples and steps, counted batch by batch."""
    sizes = [min(batch, rows - start) for start in range(0, rows, batch)]
    kept = [size for size in sizes if size == batch or not drop_last]
    return epochs * sum(kept), epochs * len(kept)


def break_even(answer: Any) -> Result:
    """3c: the reader's break_even(compile_s, native_s, compiled_s), in steps; infinite if never."""
    praise = "Where nothing is gained a step, no length of training pays it back."
    return judge_function(answer, RACES, _look_at_steps, praise)


def _look_at_steps(steps: Any, compile_s: float, native_s: float, compiled_s: float) -> str:
    gained_s = native_s - compiled_s
    right = math.ceil(compile_s / gained_s) if gained_s > 0 else math.inf
    given = float_of(steps)
    if given == right:
        return ""
    case = f"{compile_s:g} s of compiling, {native_s:g} and {compiled_s:g} s a step"
    return f"Not right for {case}: {_why_not(given, right)}"


def _why_not(given: float | None, right: float) -> str:
    """What is wrong with a number of steps."""
    if given is None:
        return "a number of steps is wanted."
    if right == math.inf:
        return "nothing is gained a step: it never catches up."
    if given == math.inf:
        return "it does catch up."
    if given == -math.inf or given != int(given):
        return "whole steps are wanted."
    if given == right - 1:
        return "after so many steps it is still behind: round up."
    if given == right + 1:
        return "one step fewer is enough."
    return "how much is gained in each step?"
