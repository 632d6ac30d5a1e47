"""How the answers about compiling and about comparing are judged."""

import math
from typing import Any

from helpers.lab.exercises.judges import (
    Expected,
    Result,
    judge_function,
    judge_numbers,
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
# compile seconds, seconds a step as it is, seconds a step compiled
RACES = ((10.0, 0.5, 0.4), (9.0, 1.0, 0.25), (0.0, 0.3, 0.2), (5.0, 0.4, 0.4), (5.0, 0.3, 0.4))
SLACK_S = 1e-9


def published_claims(answer: Any) -> Result:
    """3a: {rate, time, counted} in percent, of the published p4d pair: more samples a second, fewer
    seconds, and more of the samples that were trained on."""
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
    sizes = [min(batch, rows - start) for start in range(0, rows, batch)]
    kept = [size for size in sizes if size == batch or not drop_last]
    pair = isinstance(counts, (tuple, list)) and len(counts) == 2
    if pair and [number_of(count) for count in counts] == [epochs * sum(kept), epochs * len(kept)]:
        return ""
    words = f"{rows} rows in batches of {batch}, {epochs} epochs, drop_last={drop_last}"
    return f"Not right for {words}."


def break_even(answer: Any) -> Result:
    """3c: the reader's break_even(compile_s, native_s, compiled_s), in steps; infinite if never."""
    praise = "Where nothing is gained a step, no length of training pays it back."
    return judge_function(answer, RACES, _look_at_steps, praise)


def _look_at_steps(steps: Any, compile_s: float, native_s: float, compiled_s: float) -> str:
    if _is_first(steps, compile_s, native_s - compiled_s):
        return ""
    words = f"{compile_s:g} s of compiling, {native_s:g} and {compiled_s:g} s a step"
    return f"Not right for {words}."


def _is_first(steps: Any, compile_s: float, gained_s: float) -> bool:
    """Is it the first whole step after which the compiled run is not behind?"""
    if isinstance(steps, bool) or not isinstance(steps, (int, float)) or math.isnan(steps):
        return False
    if gained_s <= 0:
        return steps == math.inf
    if not math.isfinite(steps) or steps != int(steps) or steps < 0:
        return False
    enough = steps * gained_s >= compile_s - SLACK_S
    return enough and (steps == 0 or (steps - 1) * gained_s < compile_s - SLACK_S)
