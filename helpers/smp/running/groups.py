"""Ranks and groups as the library counts them, and messages between them.

Its data ranks (dp) have the tensor ranks among them; what is left without these is rdp; and a copy
of the model (mp) has the pipeline and tensor ranks.

Source: sagemaker-python-sdk v2.199.0, smd_model_parallel_general.rst, Ranking Basics.
"""

import math
import os
from typing import Any

import torch.distributed as dist

from helpers.engine.errors import UserError
from helpers.engine.placement import rank_grid
from helpers.engine.plan import ParallelPlan

# the library's groups -> the plan's axes over which their ranks differ
AXES = {
    "tp": ("tp",),
    "pp": ("pp",),
    "rdp": ("dp_replicate", "dp_shard"),
    "dp": ("dp_replicate", "dp_shard", "tp"),
    "mp": ("pp", "tp"),
}


class Groups:
    """What a rank may ask about itself and the others, once they have met."""

    def __init__(self) -> None:
        self._groups: dict[str, Any] = {}
        self._members: dict[str, list[int]] = {}

    def meet(self, plan: ParallelPlan) -> None:
        """Make the groups of a plan. Every rank must call it."""
        for kind, axes in AXES.items():
            for ranks in ranks_over(plan, axes):
                group = dist.new_group(ranks) if len(ranks) < plan.world_size else None
                if dist.get_rank() in ranks:
                    self._groups[kind], self._members[kind] = group or dist.group.WORLD, ranks
        self._groups["world"] = dist.group.WORLD
        self._members["world"] = list(range(plan.world_size))

    def process_group(self, kind: str = "world") -> Any:
        """The torch group of this rank: world, dp, rdp, tp, pp or mp."""
        return self._groups[self._checked(kind)]

    def group(self, kind: str = "world") -> list[int]:
        """The ranks of it, the smallest first."""
        return self._members[self._checked(kind)]

    def _place(self, kind: str) -> int:
        return self.group(kind).index(dist.get_rank())

    def rank(self) -> int:
        return self._place("world")

    def size(self) -> int:
        return len(self.group("world"))

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))

    def local_size(self) -> int:
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def tp_rank(self) -> int:
        return self._place("tp")

    def tp_size(self) -> int:
        return len(self.group("tp"))

    def pp_rank(self) -> int:
        return self._place("pp")

    def pp_size(self) -> int:
        return len(self.group("pp"))

    def rdp_rank(self) -> int:
        return self._place("rdp")

    def rdp_size(self) -> int:
        return len(self.group("rdp"))

    def dp_rank(self) -> int:
        """Among the data ranks with the tensor ranks, as the library has it."""
        return self._place("dp")

    def dp_size(self) -> int:
        return len(self.group("dp"))

    def mp_rank(self) -> int:
        return self._place("mp")

    def mp_size(self) -> int:
        return len(self.group("mp"))

    def barrier(self, kind: str = "world") -> None:
        dist.barrier(self.process_group(kind))

    def allgather(self, value: Any, kind: str = "world") -> list[Any]:
        """Every rank's value, in the order of the group."""
        values = [None] * len(self.group(kind))
        dist.all_gather_object(values, value, group=self.process_group(kind))
        return values

    def send(self, value: Any, to: int, kind: str = "world") -> None:
        dist.send_object_list([value], dst=self.group(kind)[to])

    def recv_from(self, source: int, kind: str = "world") -> Any:
        values = [None]
        dist.recv_object_list(values, src=self.group(kind)[source])
        return values[0]

    def broadcast(self, value: Any, kind: str = "world") -> None:
        """To the others of the group, which take it by `recv_from`."""
        for to, rank in enumerate(self.group(kind)):
            if rank != dist.get_rank():
                self.send(value, to, kind)

    def _checked(self, name: Any) -> str:
        """The name of a group, in any of the library's spellings."""
        kind = str(name).lower().removesuffix("_group")
        if kind not in (*AXES, "world"):
            raise UserError(f"no group is called {name!r}; there is world, {', '.join(AXES)}")
        if not self._groups:
            raise UserError("the ranks have not met yet: run.start(config) comes first")
        return kind


def ranks_over(plan: ParallelPlan, axes: tuple[str, ...]) -> list[list[int]]:
    """The groups of ranks that differ along these axes alone, each with its smallest rank first."""
    grid, names = rank_grid(plan.degrees, plan.placement), list(plan.degrees)
    dims = [names.index(axis) for axis in axes]
    size = math.prod(plan.degrees[axis] for axis in axes)
    last = list(range(-len(dims), 0))
    return [sorted(ranks) for ranks in grid.movedim(dims, last).reshape(-1, size).tolist()]
