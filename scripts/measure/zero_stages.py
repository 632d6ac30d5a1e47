"""What each way to share the training state holds, sends and takes: all go in turn, on the same
ranks, weights and batches.

    torchrun --nproc-per-node 4 scripts/measure/zero_stages.py --out runs/ladder

In a round every rung takes one step, so what else the machine does meets all alike. Writes
ladder.json: by rung, the losses, the seconds of each step, the state of each rank in bytes and, by
kind of message, the bytes of all that the first rank took part in during one step.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import turns
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import text as data
from helpers.commands import is_first, refuse
from helpers.engine.errors import UserError
from helpers.engine.messages.carriers import BOARD
from helpers.engine.messages.gloo_exchange import TAGS
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, over_ranks, pick_device, run_and_leave, world_size

KINDS = {
    "allreduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "allgather": "all_gather",
}
PIECES = {tag: kind for kind, tag in TAGS.items()}


def rungs(ranks: int) -> dict[str, dict[str, Any]]:
    """Fields of each rung's plan. Those below HSDP change one thing of ZeRO-3."""
    zero3 = {"dp_shard": ranks}
    return {
        "DDP": {"dp_replicate": ranks},
        "ZeRO-1": {**zero3, "zero_stage": 1},
        "ZeRO-2": {**zero3, "zero_stage": 2},
        "ZeRO-3": zero3,
        "HSDP": {"dp_replicate": 2, "dp_shard": ranks // 2},
        "ZeRO-3, bf16": {**zero3, "precision": "bf16"},
        "ZeRO-3, recomputing": {**zero3, "activation": "full"},
        "ZeRO-3, offloading": {**zero3, "offload": True},
    }


class Messages(TorchDispatchMode):
    """Bytes of every collective, whole: what goes in or what comes out, whichever is larger."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()
        self.pieces: Counter[str] = Counter()  # of collectives that are made of sends

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if name.startswith("profiler._record_function_enter_new") and args[0].startswith(BOARD):
            self.bytes[args[0].removeprefix(BOARD)] += int(args[1].split()[-1])
        if name.startswith("c10d.send"):
            self.pieces[PIECES[args[3]]] += size_bytes(args[0])
        for word, kind in KINDS.items():
            if name.startswith("c10d.") and word in name:
                self.bytes[kind] += max(map(size_bytes, args[:2]))
        return func(*args, **(kwargs or {}))


def size_bytes(argument: Any) -> int:
    if isinstance(argument, Tensor):
        return argument.nbytes
    return sum(map(size_bytes, argument)) if isinstance(argument, (list, tuple)) else 0


@dataclass
class Rung(turns.Turns):
    """A way to share the state, and what it did."""

    sent: Counter[str] = field(default_factory=Counter)

    def step_counting(self, batch: data.Batch) -> None:
        with Messages() as messages:
            self.step(batch)
        self.sent, ranks = messages.bytes, self.plan.dp_shard
        for kind, pieces in messages.pieces.items():  # see gloo_exchange.py
            self.sent[kind] += pieces * ranks // (ranks - 1)

    def report(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_dict(),
            "parameters": self.trainer.model.parameter_count,
            "losses": self.losses,
            "step_s": self.step_s[turns.WARMUP :],
            "state_bytes": over_ranks(self.trainer.state_bytes()),
            "message_bytes": dict(self.sent),
        }


def parse() -> argparse.Namespace:
    parser = turns.arguments(__doc__, model="neox-tiny", steps=6)
    add = parser.add_argument
    add("--rungs", nargs="+", help="names of rungs; all without it")
    add("--microbatches", type=int, default=2)
    add("--batch-size", type=int, default=16)
    add("--seq-len", type=int, default=64)
    return parser.parse_args()


def plans(args: argparse.Namespace, config: Any) -> dict[str, ParallelPlan]:
    """The wanted rungs' plans by name. Raises UserError."""
    ranks = world_size()
    if ranks < 4 or ranks % 2:
        raise UserError(f"HSDP needs an even number of at least 4 ranks, not {ranks}")
    more = {"microbatches": args.microbatches}
    return turns.chosen_plans("rung", rungs(ranks), args.rungs, config, **more)


def measure(args: argparse.Namespace, config: Any, chosen: dict[str, ParallelPlan]) -> None:
    with distributed(next(iter(chosen.values())), pick_device()):
        ladder = {}
        for number, (name, plan) in enumerate(chosen.items(), start=1):
            turns.say_loading(number, len(chosen), name)
            ladder[name] = Rung(plan, turns.trainer_of(args, config, plan))
        turns.take_turns(ladder.values(), turns.batches(args), args.steps)
        report = {name: rung.report() for name, rung in ladder.items()}
    if is_first():
        turns.write_report(args.out / "ladder.json", report)
        print(f"{len(ladder)} rungs on {world_size()} ranks, {args.steps} timed steps each")


@record
def main() -> None:
    args = parse()
    try:
        config = turns.model_of(args, args.seq_len)
        chosen = plans(args, config)
    except UserError as error:
        refuse(str(error))
    measure(args, config, chosen)


if __name__ == "__main__":
    run_and_leave(main)
