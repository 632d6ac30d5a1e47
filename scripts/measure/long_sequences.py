"""What each way to share long sequences keeps, sends and takes: all go in turn, on the same ranks,
weights and rows.

    torchrun --nproc-per-node 2 scripts/measure/long_sequences.py --out runs/long

In a round every way takes one step over one row, so what else the machine does meets all alike.
Writes long.json: by way and length, the losses, the seconds of each step, and of one step, as its
tensors were watched, the most bytes of activations on any rank and what the first rank sends over
each axis.
"""

import argparse
import copy
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import record
from turns import WARMUP, Turns, batches, model_of, say_loading, take_turns

from helpers import text as data
from helpers.commands import is_first, refuse
from helpers.engine.errors import UserError
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, over_ranks, pick_device, run_and_leave, world_size
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.dry_run import DryRun, watched
from helpers.planner.time.messages import SENT
from helpers.text.bundled import bundled


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
class Way(Turns):
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
            "step_s": self.step_s[WARMUP - 1 :],  # the watched one has no time
            "activation_bytes": max(over_ranks(self.seen.largest["activations"])),
            "sent_bytes": dict(sent),
        }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--lengths", nargs="+", type=int, default=[1024, 4096], help="tokens of a row")
    add("--ways", nargs="+", help="names of ways; all without it")
    add("--steps", type=int, default=3, help="timed steps of each way")
    add("--model", default="llama-tiny", help="preset or folder")
    for size in ("layers", "hidden", "heads"):
        add(f"--{size}", type=int, help="replaces the model's")
    add("--data", default=bundled("reviews/train.tsv"))
    add("--seed", type=int, default=0)
    add("--out", required=True, type=Path)
    return parser.parse_args()


def plans(args: argparse.Namespace, config: Any) -> dict[str, ParallelPlan]:
    """The wanted ways' plans by name. Raises UserError."""
    known = ways(world_size())
    found = {}
    for name in args.ways or known:
        if name not in known:
            raise UserError(f"no way is called {name!r}; there are: {', '.join(known)}")
        found[name] = ParallelPlan(**known[name])
        found[name].validate(config, world_size=world_size())
    return found


def measure(args: argparse.Namespace, config: Any, chosen: dict[str, ParallelPlan]) -> None:
    device = pick_device()
    report: dict[str, dict[int, Any]] = {name: {} for name in chosen}
    with distributed(next(iter(chosen.values())), device):
        for length in args.lengths:
            cases = {}
            for number, (name, plan) in enumerate(chosen.items(), start=1):
                say_loading(number, len(chosen), f"{name}, {length} tokens")
                mesh = plan.mesh(device.type)
                own = copy.deepcopy(config)  # laying a model out changes its configuration
                model = load_model(
                    args.model, plan, mesh, config=own, seed=args.seed, device=device
                )
                trainer = Trainer(model, plan, mesh, lr=1e-3, seed=args.seed)
                cases[name] = Way(plan, trainer)
            rows = argparse.Namespace(**vars(args) | {"seq_len": length, "batch_size": 1})
            take_turns(cases.values(), batches(rows), args.steps)
            for name, way in cases.items():
                report[name][length] = way.report()
    if is_first():
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "long.json").write_text(json.dumps(report, indent=1) + "\n")
        lengths = ", ".join(f"{length:,}" for length in args.lengths)
        ways_at = f"{len(chosen)} way{'s' * (len(chosen) > 1)} at {lengths} tokens"
        print(f"{ways_at}, {args.steps} timed steps each")


@record
def main() -> None:
    args = parse()
    try:
        config = model_of(args, *args.lengths)
        chosen = plans(args, config)
    except UserError as error:
        refuse(str(error))
    measure(args, config, chosen)


if __name__ == "__main__":
    run_and_leave(main)
