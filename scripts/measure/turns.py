"""Cases that take their steps in turn on the same ranks, and a line of how far they have come.

In a round every case takes one step, so what else the machine does meets all alike.
"""

import time
from collections.abc import Iterable
from itertools import islice
from typing import Any

from helpers.train.arguments import is_first

WARMUP = 2  # rounds; in the second each case counts what it keeps or sends


def say_loading(number: int, count: int, name: str) -> None:
    """That the case of this number, from 1, is being made."""
    if is_first():
        print(f"loading case {number} of {count}: {name}", flush=True)


def take_turns(cases: Iterable[Any], batches: Iterable[Any], steps: int) -> None:
    """`steps` timed rounds after those of the warm-up.

    Args:
        cases: each with step(batch) and step_counting(batch).
    """
    cases, rounds, began = list(cases), WARMUP + steps, time.perf_counter()
    for number, batch in enumerate(islice(batches, rounds), start=1):
        for case in cases:
            case.step_counting(batch) if number == WARMUP else case.step(batch)
        if is_first():
            left_s = (time.perf_counter() - began) * (rounds - number) / number
            what = "warm-up" if number <= WARMUP else "timed"
            print(
                f"round {number} of {rounds} ({what}), a step of each of {len(cases)} cases; "
                f"about {left_s:.0f} s to go",
                flush=True,
            )
