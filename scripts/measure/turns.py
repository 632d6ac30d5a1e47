"""Cases that take their steps in turn on the same ranks, and a line of how far they have come.

In a round every case takes one step, so what else the machine does meets all alike.
"""

import copy
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

from helpers import text as data
from helpers.commands import is_first
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import check_length
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import pick_device, world_size
from helpers.engine.trainer import Trainer
from helpers.text.bundled import bundled
from helpers.train.arguments import config_of

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


def arguments(doc: str, *, model: str, steps: int) -> ArgumentParser:
    """What all these programs take; `doc` says in its first line what one measures."""
    parser = ArgumentParser(description=doc.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=steps, help="timed steps of each case")
    add("--model", default=model, help="preset or folder")
    for size in ("layers", "hidden", "heads"):
        add(f"--{size}", type=int, help="replaces the model's")
    add("--data", default=bundled("reviews/train.tsv"))
    add("--lr", type=float, default=1e-3)
    add("--seed", type=int, default=0)
    add("--out", required=True, type=Path)
    return parser


def batches(args: Namespace) -> Iterator[data.Batch]:
    """Of --data, an epoch after the other."""
    tokenizer = data.load_tokenizer(bundled("tokenizer"))
    rows = data.tokenize(data.load_examples(args.data, "lm"), tokenizer, "lm", args.seq_len)
    for epoch in count():
        yield from data.batches(rows, args.batch_size, seed=args.seed, epoch=epoch)


def model_of(args: Namespace, *lengths: int) -> Any:
    """The configuration of --model, which must have so many positions.

    Raises:
        UserError: there is no such model, or it has fewer positions than one of the lengths.
    """
    config = config_of(args)
    for length in lengths:
        check_length(config, length)
    return config


def chosen_plans(
    what: str, known: dict[str, dict[str, Any]], names: list[str] | None, config: Any, **more: Any
) -> dict[str, ParallelPlan]:
    """By name, the plans of these names, or of all; `known` has the fields of each, to which `more`
    are added.

    Raises:
        UserError: a name is not known, or its plan does not fit the model or the ranks.
    """
    found = {}
    for name in names or known:
        if name not in known:
            raise UserError(f"no {what} is called {name!r}; there are: {', '.join(known)}")
        found[name] = ParallelPlan(**known[name], **more)
        found[name].validate(config, world_size=world_size())
    return found


def trainer_of(args: Namespace, config: Any, plan: ParallelPlan) -> Trainer:
    """Of --model with this configuration, on ranks that have met."""
    device = pick_device()
    mesh = plan.mesh(device.type)
    own = copy.deepcopy(config)  # laying a model out changes its configuration
    model = load_model(args.model, plan, mesh, config=own, seed=args.seed, device=device)
    return Trainer(model, plan, mesh, lr=args.lr, seed=args.seed)


def write_report(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


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
