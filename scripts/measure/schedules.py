"""What a pipeline's schedules take: they go in turn, on the same ranks, weights and batches.

    torchrun --nproc-per-node 2 scripts/measure/schedules.py --cases gpipe:8 1f1b:8 --out runs/one

A case is SCHEDULE:MICROBATCHES. In a round every case takes one step, so what else the machine does
meets all alike. Writes schedules.json: by case, the losses, the partition, the seconds of each step
and the most bytes that each rank kept for its backwards; and SCHEDULE-MICROBATCHES.json: when each
rank ran what (helpers.trace.timelines).
"""

import argparse
import copy
import itertools
import os
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import turns
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.multiprocessing.errors import record

from helpers import text as data
from helpers.commands import is_first, refuse
from helpers.engine.adapters.qlora import Adapting, load_adapted
from helpers.engine.errors import UserError
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, over_ranks, pick_device, run_and_leave
from helpers.engine.trainer import Trainer
from helpers.trace import timelines

RANKS = int(os.environ.get("WORLD_SIZE", 1))


@dataclass
class Case(turns.Turns):
    """A schedule with a number of micro-turns.batches, and what it did."""

    kept_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.plan.schedule}:{self.plan.microbatches}"

    def step_counting(self, batch: data.Batch) -> None:
        kept = Kept(self.trainer.model)
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
            self.step(batch)
        self.kept_bytes = kept.most
        self.trainer.pipeline.history.clear()  # counting takes time: no timeline of it

    def report(self) -> dict[str, Any]:
        return {
            "losses": self.losses,
            "step_s": self.step_s[turns.WARMUP :],
            "kept_bytes": over_ranks(self.kept_bytes),
            "layers": over_ranks([len(stage.blocks) for stage in self.trainer.model.stages]),
        }


class Box:
    """Holds a tensor as long as a graph does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Kept:
    """Counts the bytes that graphs, and weight gradients that are put off, keep for later.

    Parameters are not counted, and memory that several tensors share is counted once. `most` is
    taken whenever a graph keeps something, so at the end of the forwards.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.later = getattr(model, "later", None)
        self.users: Counter[int] = Counter()
        self.bytes: dict[int, int] = {}
        self.most = 0

    def pack(self, tensor: Tensor) -> Any:
        memory = tensor.untyped_storage()
        if memory.data_ptr() in self.parameters:
            return tensor
        box = Box(tensor)
        self.users[memory.data_ptr()] += 1
        self.bytes[memory.data_ptr()] = memory.nbytes()
        weakref.finalize(box, self.drop, memory.data_ptr())
        self.most = max(self.most, sum((self.bytes | self.put_off()).values()))
        return box

    def unpack(self, kept: Any) -> Tensor:
        return kept.tensor if isinstance(kept, Box) else kept

    def drop(self, address: int) -> None:
        self.users[address] -= 1
        if not self.users[address]:
            del self.bytes[address]

    def put_off(self) -> dict[int, int]:
        """Memory of weight gradients that are still to be computed."""
        pending = self.later.pending.values() if self.later else ()
        memories = [
            t.untyped_storage() for one in itertools.chain(*pending) for t in (one.x, one.grad)
        ]
        return {memory.data_ptr(): memory.nbytes() for memory in memories}


def parse() -> argparse.Namespace:
    parser = turns.arguments(__doc__, model="gptj-tiny", steps=6)
    add = parser.add_argument
    add("--cases", nargs="+", required=True, help="SCHEDULE:MICROBATCHES")
    add("--lora-rank", type=int, help="train adapters of this rank beside a frozen model")
    add("--quantize", choices=("nf4",), help="hold the frozen model's matrices in 4 bits")
    add("--precision", default="fp32", help="of the arithmetic, as in a plan")
    add("--batch-size", type=int, default=16)
    add("--seq-len", type=int, default=64)
    return parser.parse_args()


def plans(args: argparse.Namespace, config: Any) -> list[ParallelPlan]:
    found = []
    for case in args.cases:
        schedule, _, count = case.partition(":")
        if not count.isdecimal() or not int(count):
            raise UserError(f"a case is SCHEDULE:MICROBATCHES, not {case!r}")
        fields = {"schedule": schedule, "microbatches": int(count), "precision": args.precision}
        plan = ParallelPlan(pp=RANKS, **fields)
        plan.validate(config, world_size=RANKS)
        if args.lora_rank:
            adapting(args).check(plan)
        found.append(plan)
    return found


def adapting(args: argparse.Namespace) -> Adapting:
    return Adapting(args.lora_rank, quantize=args.quantize)


def load(args: argparse.Namespace, config: Any, plan: ParallelPlan, mesh: DeviceMesh) -> nn.Module:
    options = {"config": config, "seed": args.seed, "device": pick_device()}
    if args.lora_rank:
        return load_adapted(args.model, plan, mesh, adapting(args), **options)
    return load_model(args.model, plan, mesh, **options)


def measure(args: argparse.Namespace, config: Any, chosen: list[ParallelPlan]) -> None:
    device = pick_device()
    with distributed(chosen[0], device) as mesh:
        cases = []
        for number, plan in enumerate(chosen, start=1):
            turns.say_loading(number, len(chosen), f"{plan.schedule}:{plan.microbatches}")
            own = copy.deepcopy(config)  # laying a model out changes its configuration
            trainer = Trainer(load(args, own, plan, mesh), plan, mesh, lr=args.lr, seed=args.seed)
            trainer.pipeline.timed = True
            cases.append(Case(plan, trainer))
        turns.take_turns(cases, turns.batches(args), args.steps)
        report = {case.name: case.report() for case in cases}
        steps = {case.name: timelines.gather(case.trainer) for case in cases}
    if is_first():
        turns.write_report(args.out / "schedules.json", report)
        for name, spans in steps.items():
            timelines.write_timelines(args.out / f"{name.replace(':', '-')}.json", spans)
        print(f"{len(cases)} cases, {args.steps} timed steps each")


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
