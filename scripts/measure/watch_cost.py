"""What `--watch` costs: steps with a look and without, in turn, in one process.

    python scripts/measure/watch_cost.py --hidden 256 --layers 4 --pairs 40

Prints the median of (a step that is looked at / one that is not), and what that makes of a run that
looks at every tenth step.
"""

import argparse
import contextlib
import time
from statistics import median, quantiles

import torch
import torch.distributed as dist

from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.train.arguments import config_of, whole
from helpers.watch.observe import Observer
from helpers.watch.watch import EVERY

WARM = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-tiny")
    for name, size in (("layers", 4), ("hidden", 256), ("heads", 8), ("seq-len", 128)):
        parser.add_argument(f"--{name}", type=whole, default=size)
    parser.add_argument("--batch-size", type=whole, default=8)
    parser.add_argument("--pairs", type=whole, default=40)
    args = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    plan = ParallelPlan()
    mesh = plan.mesh("cpu")
    config = config_of(args)
    trainer = Trainer(load_model(args.model, plan, mesh, config=config), plan, mesh, lr=1e-4)
    ids = torch.randint(0, config.vocab_size, (args.batch_size, args.seq_len))
    ratios, plain = [], []
    for pair in range(WARM + args.pairs):
        order = (False, True) if pair % 2 else (True, False)  # neither is always the first
        times = {looked: step_s(trainer, ids, looked) for looked in order}
        if pair >= WARM:
            ratios.append(times[True] / times[False])
            plain.append(times[False])
    low, middle, high = quantiles(ratios, n=4)
    print(f"a step of {1e3 * median(plain):.0f} ms; one that is looked at takes {middle:.3f} times")
    print(
        f"as long (quartiles {low:.3f} to {high:.3f}); every {EVERY}th: {(middle - 1) / EVERY:.2%}"
    )


def step_s(trainer: Trainer, ids: torch.Tensor, looked: bool) -> float:
    began = time.perf_counter()
    observer = Observer() if looked else None
    with observer.activations_of(trainer.model) if observer else contextlib.nullcontext():
        trainer.step(ids, ids.clone(), observer=observer)
    if observer:
        observer.gather()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
