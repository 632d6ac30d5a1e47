"""A small training run in the rank processes, and the same with a fault put in on purpose."""

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.trace.recorder import STATUS, _kilobytes, profiled
from tests.support.ranks import mesh_of

FIRST, LAST = 3, 7  # steps traced
LATE_S = 0.2
REPLICAS = {"dp_replicate": 2}
# fault, or none: plan, sizes of the model, rows and length of a batch
RUNS = {
    "": (REPLICAS, {}, 16, 128),
    "input": (REPLICAS, {}, 16, 128),  # rank 1's batches come late
    # tiny operations; on one rank, since with two the wait for each other's messages is longer
    "launch": ({}, {"hidden_size": 32, "num_attention_heads": 2}, 2, 8),
    # whole weights are gathered for a few tokens, in every micro-batch
    "communication": ({"dp_shard": 2, "microbatches": 4}, {"hidden_size": 256}, 8, 4),
    "straggler": (REPLICAS, {}, 16, 128),  # rank 1's forward is slow
    "memory": (REPLICAS, {}, 16, 128),  # rank 0 gets 5 % more address space than it takes
    "sharded": ({"dp_shard": 2}, {}, 16, 128),  # no fault
    # a small head, so that both stages work as long
    "bubble": ({"pp": 2, "schedule": "naive", "microbatches": 2}, {"vocab_size": 256}, 16, 128),
    "pipeline": ({"pp": 2, "schedule": "1f1b", "microbatches": 6}, {"vocab_size": 256}, 24, 128),
}


def ranks(fault: str) -> int:
    """How many the run with this fault has."""
    return ParallelPlan(**RUNS[fault][0]).world_size


def train(folder: Path, fault: str) -> None:
    """Take LAST + 1 steps, trace those from FIRST to LAST."""
    layout, sizes, rows, length = RUNS[fault]
    plan = ParallelPlan(**layout)
    config = load_config("gptj-tiny", **sizes)
    model = load_model("gptj-tiny", plan, mesh_of(plan), config=config)
    with patch("helpers.engine.data_parallel.buckets.BUCKET_BYTES", 2**20):
        trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
    if fault == "straggler" and dist.get_rank() == 1:
        model.register_forward_pre_hook(lambda *_: time.sleep(LATE_S))

    def trace(into: Path) -> None:
        source = batches(rows, length, fault)
        for ids in profiled(source, into, FIRST, LAST, states=trainer.state_bytes):
            trainer.step(ids, ids)
            with record_function("my own"):
                time.sleep(1e-3)

    if fault == "memory":
        trace(folder / "before")  # which says how much it takes
    with limited_memory(fault):
        trace(folder)


def batches(rows: int, length: int, fault: str) -> Iterator[Tensor]:
    for step in range(LAST + 1):
        if fault == "input" and dist.get_rank() == 1:
            time.sleep(LATE_S)
        generator = torch.Generator().manual_seed(step)
        yield torch.randint(0, 256, (rows, length), generator=generator)


class limited_memory:
    """An artificial limit, for rank 0 of the run that has this fault."""

    def __init__(self, fault: str) -> None:
        self.wanted = fault == "memory" and dist.get_rank() == 0

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        if self.wanted:
            limit = int(1.05 * _kilobytes(STATUS, "VmPeak"))
            resource.setrlimit(resource.RLIMIT_AS, (limit, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self.before)
