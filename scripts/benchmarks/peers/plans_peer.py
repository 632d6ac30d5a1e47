"""Many plans of this engine in one set of ranks, one step each in turn."""

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
    """`plans` are the fields of each plan; with every call the next one takes its step.

    Plans of the same degrees share a mesh, so there are only as many process groups as needed.
    """

    def __init__(self, work: Work, rank: int, ranks: int, plans: list[dict[str, Any]]) -> None:
        keep_freed_memory()  # as `distributed` does
        meshes: dict[tuple[int, ...], Any] = {}
        trainers = []
        for plan in (ParallelPlan(**fields) for fields in plans):
            degrees = tuple(plan.degrees.values())
            if degrees not in meshes:
                meshes[degrees] = plan.mesh("cpu")
            model = load_model(work.folder, plan, meshes[degrees])
            trainers.append(trainer_of(model, plan, meshes[degrees]))
        self.turns = itertools.cycle(trainers)

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        result = next(self.turns).step(ids, ids)
        dist.barrier()  # a rank that is through early would begin the next plan's step
        return result.loss, result.grad_norm

    def state(self) -> dict[str, Any]:
        return {}
