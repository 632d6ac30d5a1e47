"""How the answers about compiling and about comparing are judged."""

import math
from typing import Any

from helpers.lab.exercises.tensor import NOT_DONE, Result, incomplete, kind_of, number_of
from helpers.planner.published.posts_compiler import P4D, audit

# rows, batch, epochs
EPOCHS = ((100, 10, 3), (103, 10, 3), (7, 8, 2), (1595, 160, 400), (64, 64, 1))
# compile seconds, seconds a step as it is, seconds a step compiled
RACES = ((10.0, 0.5, 0.4), (9.0, 1.0, 0.25), (0.0, 0.3, 0.2), (5.0, 0.4, 0.4), (5.0, 0.3, 0.4))


def expected_claims() -> dict[str, float]:
    """3a: percent, of the published p4d pair: more samples a second, fewer seconds, and more of the
    samples that were trained on."""
    found = audit(P4D)
    return {
        "rate": found.reported.percent,
        "time": found.training.percent,
        "counted": found.counted.percent,
    }


def published_claims(answer: Any) -> Result:
    """3a: {rate, time, counted} in percent, within a tenth of a percent point."""
    expected = expected_claims()
    if lacking := incomplete(answer, expected):
        return lacking
    numbers = {key: number_of(answer[key]) for key in expected}
    wrong = [key for key, number in numbers.items() if not _close(number, expected[key])]
    if wrong:
        return Result(words=f"Not right: {', '.join(wrong)}.")
    said = ", ".join(f"{key} {value:.1f} %" for key, value in expected.items())
    return Result(True, f"{said}: one pair of runs, three numbers.")


def _close(number: float | None, expected: float) -> bool:
    return number is not None and abs(number - expected) < 0.1


def trained(answer: Any) -> Result:
    """3b: the reader's trained(rows, batch, epochs, drop_last), counted by hand."""
    if not callable(answer):
        return Result(words=f"A function is wanted, not {kind_of(answer)}.")
    for rows, batch, epochs in EPOCHS:
        for drop_last in (False, True):
            batches = [min(batch, rows - start) for start in range(0, rows, batch)]
            kept = [size for size in batches if size == batch or not drop_last]
            try:
                found = answer(rows, batch, epochs, drop_last)
            except Exception as error:
                return Result(words=f"It raises {type(error).__name__}: {error}.")
            if found is None:
                return NOT_DONE
            if _numbers(found, 2) != [epochs * sum(kept), epochs * len(kept)]:
                words = f"{rows} rows in batches of {batch}, {epochs} epochs, drop_last={drop_last}"
                return Result(words=f"Not right for {words}.")
    return Result(True, "What is dropped is neither trained on nor a step.")


def break_even(answer: Any) -> Result:
    """3c: the reader's break_even(compile_s, native_s, compiled_s), in steps; infinite if never."""
    if not callable(answer):
        return Result(words=f"A function is wanted, not {kind_of(answer)}.")
    for compile_s, native_s, compiled_s in RACES:
        try:
            found = answer(compile_s, native_s, compiled_s)
        except Exception as error:
            return Result(words=f"It raises {type(error).__name__}: {error}.")
        if found is None:
            return NOT_DONE
        if not _is_first(found, compile_s, native_s, compiled_s):
            words = f"{compile_s:g} s of compiling, {native_s:g} and {compiled_s:g} s a step"
            return Result(words=f"Not right for {words}.")
    return Result(True, "Where nothing is gained a step, no length of training pays it back.")


def _is_first(steps: Any, compile_s: float, native_s: float, compiled_s: float) -> bool:
    """Is it the first whole step after which the compiled run is not behind?"""
    gained_s = native_s - compiled_s
    if isinstance(steps, bool) or not isinstance(steps, (int, float)) or math.isnan(steps):
        return False
    if gained_s <= 0:
        return steps == math.inf
    if not math.isfinite(steps) or steps != int(steps) or steps < 0:
        return False
    slack = 1e-9
    enough = steps * gained_s >= compile_s - slack
    return enough and (steps == 0 or (steps - 1) * gained_s < compile_s - slack)


def _numbers(found: Any, count: int) -> list[float | None]:
    """The numbers of a tuple or list of so many; an empty list for anything else."""
    if not isinstance(found, (tuple, list)) or len(found) != count:
        return []
    return [number_of(one) for one in found]
