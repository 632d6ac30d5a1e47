"""Cases that take their steps in turn on the same ranks, and a line of how far they have come.

In a round every case takes one step, so what else the machine does meets all alike.
"""

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from helpers.commands import is_first
from helpers.engine.models.configurations import check_length, load_config
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.text import tokens as data
from helpers.text.bundled import bundled

WARMUP = 2  # rounds; in the second each case counts what it keeps or sends


@dataclass
class Turns:
    """A case, and what its steps gave and took."""

    plan: ParallelPlan
    trainer: Trainer
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def step(self, batch: data.Batch) -> None:
        result = self.trainer.step(batch.input_ids, batch.labels)
        self.losses.append(result.loss)
        self.step_s.append(result.step_s)

    def step_counting(self, batch: data.Batch) -> None:
        """A step beside which is counted what the case keeps or sends."""
        raise NotImplementedError


def batches(args: Namespace) -> Iterator[data.Batch]:
    """Of --data, an epoch after the other."""
    tokenizer = data.load_tokenizer(bundled("tokenizer"))
    rows = data.tokenize(data.load_examples(args.data, "lm"), tokenizer, "lm", args.seq_len)
    for epoch in count():
        yield from data.batches(rows, args.batch_size, seed=args.seed, epoch=epoch)


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


def take_turns(cases: Iterable[Turns], batches: Iterable[data.Batch], steps: int) -> None:
    """`steps` timed rounds after those of the warm-up."""
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
