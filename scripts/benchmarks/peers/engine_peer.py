"""The engine of this project under any plan."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.work import BETAS, CLIP, EPS, LR, WEIGHT_DECAY, Work
from helpers.engine.memory.cpu_allocator import keep_freed_memory
from helpers.engine.messages.boards import without_board
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.compiling import compile_s
from helpers.engine.trainer import Trainer


def trainer_of(model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> Trainer:
    """A laid-out model with the optimizer that every peer has."""
    return Trainer(
        model,
        plan,
        mesh,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        betas=BETAS,
        eps=EPS,
        clip=CLIP,
    )


class Peer:
    """`options` are the fields of the plan.

    gloo: let it carry all messages, in place of shared memory.
    """

    def __init__(
        self, work: Work, rank: int, ranks: int, gloo: bool = False, **options: Any
    ) -> None:
        plan = ParallelPlan(**options)
        plan.validate(world_size=dist.get_world_size())
        keep_freed_memory()  # as `distributed` does
        mesh = plan.mesh("cpu")
        for group in (dist.group.WORLD, *mesh.get_all_groups()) if gloo else ():
            without_board(group)
        self.trainer = trainer_of(self.load(work, plan, mesh), plan, mesh)
        self.trainer.pipeline.timed = plan.pp > 1

    def load(self, work: Work, plan: ParallelPlan, mesh: DeviceMesh) -> nn.Module:
        return load_model(work.folder, plan, mesh)

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        result = self.trainer.step(ids, ids)
        return result.loss, result.grad_norm

    def state(self) -> dict[str, Any]:
        """Bytes by kind, and of a pipeline when each action of the last steps ran."""
        if self.trainer.plan.pp == 1:
            return self.trainer.state_bytes() | {"compile_s": compile_s()}
        steps = self.trainer.pipeline.history
        spans = [[[*span.action, span.start_s, span.end_s] for span in step] for step in steps]
        return self.trainer.state_bytes() | {"spans": spans}
