"""What each way to share long sequences keeps, sends and takes: all go in turn, on the same ranks,
weights and rows.

    torchrun --nproc-per-node 2 scripts/measure/long_sequences.py --out runs/long

In a round every way takes one step over one row, so what else the machine does meets all alike.
Writes long.json: by way and length, the losses, the seconds of each step, and of one step, as its
tensors were watched, the most bytes of activations on any rank and what the first rank sends over
each axis.
"""

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import Any

import turns
from torch.distributed.elastic.multiprocessing.errors import record

from helpers import text as data
from helpers.commands import is_first, refuse
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, over_ranks, pick_device, run_and_leave, world_size
from helpers.planner.dry_run.dry_run import DryRun, watched
from helpers.planner.time.messages import SENT


def ways(ranks: int) -> dict[str, dict[str, Any]]:
    """Fields of each way's plan."""
    if ranks == 1:
        return {"one process": {}, "one process, recomputing": {"activation": "full"}}
    return {
        "ring": {"cp": ranks},
        "gather": {"cp": ranks, "cp_attention": "gather"},
        "ulysses": {"cp": ranks, "cp_attention": "ulysses"},
        "ring, contiguous": {"cp": ranks, "cp_split": "contiguous"},
        "ring, recomputing": {"cp": ranks, "activation": "full"},
        "tp": {"tp": ranks},
        "tp, sequence parallel": {"tp": ranks, "sequence_parallel": True},
    }


@dataclass
class Way(turns.Turns):
    """A way to share sequences, and what it did."""

    seen: DryRun | None = None

    def step_counting(self, batch: data.Batch) -> None:
        self.seen = watched(self.trainer, batch.input_ids, batch.labels)

    def report(self) -> dict[str, Any]:
        sent: Counter[str] = Counter()
        for message, count in self.seen.messages.items():
            share = 0 if message.kind == "receive" else SENT[message.kind](message.ranks)
            sent[message.axis] += count * message.payload_bytes * share
        return {
            "plan": self.plan.to_dict(),
            "losses": self.losses,
            "step_s": self.step_s[turns.WARMUP - 1 :],  # the watched one has no time
            "activation_bytes": max(over_ranks(self.seen.largest["activations"])),
            "sent_bytes": dict(sent),
        }


def parse() -> argparse.Namespace:
    parser = turns.arguments(__doc__, model="llama-tiny", steps=3)
    add = parser.add_argument
    add("--lengths", nargs="+", type=int, default=[1024, 4096], help="tokens of a row")
    add("--ways", nargs="+", help="names of ways; all without it")
    return parser.parse_args()


def measure(args: argparse.Namespace, config: Any, chosen: dict[str, ParallelPlan]) -> None:
    report: dict[str, dict[int, Any]] = {name: {} for name in chosen}
    with distributed(next(iter(chosen.values())), pick_device()):
        for length in args.lengths:
            cases = {}
            for number, (name, plan) in enumerate(chosen.items(), start=1):
                turns.say_loading(number, len(chosen), f"{name}, {length} tokens")
                cases[name] = Way(plan, turns.trainer_of(args, config, plan))
            rows = argparse.Namespace(**vars(args) | {"seq_len": length, "batch_size": 1})
            turns.take_turns(cases.values(), turns.batches(rows), args.steps)
            for name, way in cases.items():
                report[name][length] = way.report()
    if is_first():
        turns.write_report(args.out / "long.json", report)
        lengths = ", ".join(f"{length:,}" for length in args.lengths)
        ways_at = f"{len(chosen)} way{'s' * (len(chosen) > 1)} at {lengths} tokens"
        print(f"{ways_at}, {args.steps} timed steps each")


@record
def main() -> None:
    args = parse()
    try:
        config = turns.model_of(args, *args.lengths)
        chosen = turns.chosen_plans("way", ways(world_size()), args.ways, config)
    except UserError as error:
        refuse(str(error))
    measure(args, config, chosen)


if __name__ == "__main__":
    run_and_leave(main)
