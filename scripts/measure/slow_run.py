"""A run that is slow for one reason, and the same run mended; both are traced.

    torchrun --nproc-per-node 2 scripts/measure/slow_run.py --case a --out runs/one

The cases are CASES, below: read them after you have found the reasons in their traces. Case e takes
one rank, the others two. Writes traces/, trace.json and findings.json as the training script does
with --profile, and run.json: tokens per second, and seconds of each step that was not traced.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record

from helpers.commands import is_first, refuse
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed, over_ranks, pick_device, run_and_leave, world_size
from helpers.engine.trainer import Trainer
from helpers.text.prefetching import prefetched
from helpers.text.tokens import Batch
from helpers.trace.findings import write_findings
from helpers.trace.recorder import profiled

WARMUP, TRACED = 2, 4  # steps
SLOW_RANK = 1
READ_S = 0.12  # to read a batch from a slow disk
SLOWER = 3  # times as long that a slow machine's forward takes
IDS = 256  # of the vocabulary that is used


@dataclass(frozen=True)
class Case:
    """A run, and what its mended one has in place of it.

    plan: fields of ParallelPlan.
    sizes: of the model, in place of gptj-tiny's.
    rows, length: of a step's batch, over all ranks.
    slow_reader: SLOW_RANK's batches take READ_S each; ahead: they are read while a step runs.
    slow_machine: SLOW_RANK's forward takes SLOWER times as long.
    """

    plan: dict[str, Any] = field(default_factory=lambda: {"dp_replicate": 2})
    sizes: dict[str, int] = field(default_factory=dict)
    rows: int = 16
    length: int = 128
    slow_reader: bool = False
    ahead: bool = False
    slow_machine: bool = False


SMALL = {"hidden_size": 32, "num_attention_heads": 2, "vocab_size": IDS}
WIDE, EVEN, SHARDED = {"hidden_size": 256}, {"vocab_size": IDS}, {"dp_shard": 2}
CASES = {
    "a": (Case(slow_machine=True), Case()),
    "b": (Case(slow_reader=True), Case(slow_reader=True, ahead=True)),
    "c": (Case(SHARDED | {"microbatches": 4}, WIDE, 8, 4), Case(SHARDED, WIDE, 32, 64)),
    "d": (
        Case({"pp": 2, "schedule": "naive", "microbatches": 2}, EVEN, 24),
        Case({"pp": 2, "schedule": "1f1b", "microbatches": 6}, EVEN, 24),
    ),
    "e": (Case({}, SMALL, rows=2, length=8), Case({}, SMALL, rows=32, length=64)),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=(*CASES, "healthy"), required=True)
    parser.add_argument("--mended", action="store_true", help="without the reason why it is slow")
    parser.add_argument("--steps", type=int, default=6, help="timed steps, which are not traced")
    parser.add_argument("--seed", type=int, default=0, help="of the batches")
    parser.add_argument("--out", required=True, type=Path)
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> tuple[Case, ParallelPlan]:
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: at least one step is timed")
    case = Case() if args.case == "healthy" else CASES[args.case][args.mended]
    plan = ParallelPlan(**case.plan)
    plan.validate(world_size=world_size())
    return case, plan


def batches(case: Case, count: int, seed: int) -> Iterator[Batch]:
    for step in range(count):
        if case.slow_reader and dist.get_rank() == SLOW_RANK:
            time.sleep(READ_S)
        generator = torch.Generator().manual_seed(seed + step)
        ids = torch.randint(0, IDS, (case.rows, case.length), generator=generator)
        yield Batch(ids, ids, case.rows, ids.numel())


def slow_down(model: nn.Module) -> None:
    """A slower machine's forward: of each, as much again is slept as makes it SLOWER times."""
    began: list[float] = []
    model.register_forward_pre_hook(lambda *_: began.append(time.perf_counter()))
    model.register_forward_hook(
        lambda *_: time.sleep((SLOWER - 1) * (time.perf_counter() - began.pop()))
    )


def take_steps(args: argparse.Namespace, case: Case, plan: ParallelPlan) -> dict[str, Any]:
    """Warm-up, timed steps, then traced ones."""
    device = pick_device()
    with distributed(plan, device) as mesh:
        config = load_config("gptj-tiny", **case.sizes)
        model = load_model("gptj-tiny", plan, mesh, config=config, device=device)
        trainer = Trainer(model, plan, mesh, lr=1e-3)
        if case.slow_machine and dist.get_rank() == SLOW_RANK:
            slow_down(model)
        first = WARMUP + args.steps + 1
        source = batches(case, first + TRACED - 1, args.seed)
        source = prefetched(source) if case.ahead else source
        ended, losses = [time.perf_counter()], []
        traces = args.out / "traces"
        last = first + TRACED - 1
        ran = profiled(source, traces, first, last, device=device, states=trainer.state_bytes)
        for batch in ran:
            ids = batch.input_ids.to(device)
            losses.append(trainer.step(ids, ids).loss)
            ended.append(time.perf_counter())
        over_ranks(None)  # until all traces are there
    step_s = [after - before for before, after in itertools.pairwise(ended)]
    timed_s = step_s[WARMUP : WARMUP + args.steps]
    tokens = case.rows * case.length
    return {
        "tokens_per_s": tokens / median(timed_s),
        "step_s": timed_s,
        "tokens": tokens,
        "losses": losses,
    }


@record
def main() -> None:
    args = parse()
    try:
        case, plan = chosen(args)
    except UserError as error:
        refuse(str(error))
    report = take_steps(args, case, plan)
    if is_first():
        (args.out / "run.json").write_text(json.dumps(report, indent=1) + "\n")
        write_findings(args.out)
        print(f"case {args.case}{', mended' if args.mended else ''}: {len(report['losses'])} steps")


if __name__ == "__main__":
    run_and_leave(main)
