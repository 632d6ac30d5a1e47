"""Cases that take their steps in turn on the same ranks, and a line of how far they have come.

In a round every case takes one step, so what else the machine does meets all alike.
"""

import time
from argparse import Namespace
from collections.abc import Iterable
from itertools import islice
from typing import Any

from helpers.commands import is_first
from helpers.engine.models.configurations import check_length, load_config

WARMUP = 2  # rounds; in the second each case counts what it keeps or sends


def model_of(args: Namespace, *lengths: int) -> Any:
    """The configuration of --model with --layers, --hidden and --heads.

    Raises:
        UserError: there is no such model, or it has fewer positions than one of the lengths.
    """
    overrides = {
        "num_hidden_layers": args.layers,
        "hidden_size": args.hidden,
        "num_attention_heads": args.heads,
    }
    config = load_config(args.model, **overrides)
    for length in lengths:
        check_length(config, length)
    return config


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
