"""What the profiler costs in the steps that it does not trace.

    python scripts/measure/profiler_cost.py --rounds 300

Short steps of a small model in one process, where ranges are the largest share: in turn with the
named ranges and with ranges that do nothing, so that what else the machine does meets both alike.
First before anything was traced, then after a trace of two steps. Prints the median of (step with
ranges / step beside it without), and its quartiles.
"""

import argparse
import tempfile
from collections.abc import Iterator
from statistics import median, quantiles
from unittest.mock import patch

import torch
from torch.profiler import record_function

from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, run_and_leave
from helpers.engine.trainer import Trainer
from helpers.trace.recorder import profiled

WARMUP = 10  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description="What the profiler costs in untraced steps.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = ParallelPlan()
    with distributed(plan, torch.device("cpu")) as mesh, tempfile.TemporaryDirectory() as folder:
        config = load_config("gptj-tiny", num_hidden_layers=2)
        trainer = Trainer(load_model("gptj-tiny", plan, mesh, config=config), plan, mesh, lr=1e-3)
        batch = torch.randint(0, config.vocab_size, (args.rows, args.length))
        first = WARMUP + 2 * args.rounds + 1
        source = iter(lambda: batch, None)
        batches = profiled(source, folder, first, first + 1, states=trainer.state_bytes)
        for _ in range(WARMUP):
            take(trainer, batches)
        before = [in_turn(trainer, batches) for _ in range(args.rounds)]
        for _ in range(2):
            take(trainer, batches)
        after = [in_turn(trainer, batches) for _ in range(args.rounds)]
    for name, pairs in (("before the trace", before), ("after it", after)):
        shares = [marked / bare for bare, marked in pairs]
        low, _, high = quantiles(shares, n=4)
        step_ms = 1e3 * median(bare for bare, _ in pairs)
        print(
            f"{name}: {median(shares):.3f} of the {step_ms:.1f} ms of a step without ranges, "
            f"quartiles {low:.3f} to {high:.3f}, {args.rounds} pairs"
        )


def in_turn(trainer: Trainer, batches: Iterator[torch.Tensor]) -> tuple[float, float]:
    """Seconds of a step without ranges, and of one with them; each is as often the first."""
    if trainer.steps_done // 2 % 2:
        marked_s = take(trainer, batches)
        return without_ranges(trainer, batches), marked_s
    return without_ranges(trainer, batches), take(trainer, batches)


def without_ranges(trainer: Trainer, batches: Iterator[torch.Tensor]) -> float:
    with (
        patch.object(record_function, "__enter__", lambda range_: range_),
        patch.object(record_function, "__exit__", lambda *_: None),
    ):
        return take(trainer, batches)


def take(trainer: Trainer, batches: Iterator[torch.Tensor]) -> float:
    ids = next(batches)
    return trainer.step(ids, ids).step_s


if __name__ == "__main__":
    run_and_leave(main)
