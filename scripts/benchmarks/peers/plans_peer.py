"""Many plans of this engine in one set of ranks, some steps of each in turn."""

import itertools
from typing import Any

import torch.distributed as dist
from torch import Tensor

from benchmarks.peers.engine_peer import trainer_of
from benchmarks.work import Work
from helpers.engine.memory.cpu_allocator import keep_freed_memory
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan


class Peer:
    """`plans` are the fields of each plan; each takes `turn` steps, a step with every call, and
    then it is the next one's turn.

    They have the same degrees, and so one mesh: each process group has threads of its own, which
    wake a hundred times a second and would slow all plans.
    """

    def __init__(
        self, work: Work, rank: int, ranks: int, plans: list[dict[str, Any]], turn: int
    ) -> None:
        keep_freed_memory()  # as `distributed` does
        every = [ParallelPlan(**fields) for fields in plans]
        mesh = every[0].mesh("cpu")
        trainers = [trainer_of(load_model(work.folder, plan, mesh), plan, mesh) for plan in every]
        self.turns = itertools.cycle(trainer for trainer in trainers for _ in range(turn))

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        result = next(self.turns).step(ids, ids)
        dist.barrier()  # a rank that is through early would begin the next plan's step
        return result.loss, result.grad_norm

    def state(self) -> dict[str, Any]:
        return {}
