"""PyTorch's own pipeline schedules, running the same stages as this engine."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.peers.plain_peer import size
from benchmarks.work import CLIP, Work, adamw
from helpers.engine.models.architecture import family_of
from helpers.engine.models.families import Family
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Stage(nn.Module):
    """One of the engine's stages as the module that torch's pipeline calls."""

    def __init__(self, model: nn.Module, family: Family) -> None:
        super().__init__()
        self.model, self.family = model, family
        (self.stage,) = model.stages

    def forward(self, x: Tensor) -> Tensor:
        first, base = self.stage.first, self.model.base_model
        ids = x if first else torch.empty(x.shape[:2], dtype=torch.long, device="meta")
        received = None if first else x
        out = self.stage.run(self.model, self.family, base, ids, received, use_cache=False)
        return out[0] if self.stage.last else out


class Peer:
    def __init__(self, work: Work, rank: int, ranks: int, schedule: str, microbatches: int) -> None:
        plan = ParallelPlan(pp=ranks, schedule=schedule, microbatches=microbatches)
        self.model = load_model(work.folder, plan, plan.mesh("cpu"))
        family = family_of(self.model)
        self.head = self.model.get_submodule(family.head)
        self.tokens = work.batch * (work.seq - 1)
        stage = PipelineStage(
            Stage(self.model, family), rank, ranks, torch.device("cpu"), group=dist.group.WORLD
        )
        self.schedule = SCHEDULES[schedule](
            stage, microbatches, loss_fn=self.loss, scale_grads=False
        )
        self.first, self.last = rank == 0, rank == ranks - 1
        self.optimizer = adamw(self.model.named_parameters())

    def loss(self, hidden: Tensor, ids: Tensor) -> Tensor:
        self.head.targets = ids[:, 1:].flatten()
        try:
            return self.head(hidden[:, :-1].flatten(0, 1)) / self.tokens
        finally:
            self.head.targets = None

    def __call__(self, ids: Tensor) -> tuple[float, float | None]:
        losses: list[Tensor] = []
        inputs = (ids,) if self.first else ()
        target = {"target": ids, "losses": losses} if self.last else {}
        self.schedule.step(*inputs, **target, return_outputs=False)
        gradients = [p.grad for p in self.model.parameters()]
        sums = torch.zeros(2, dtype=torch.float64)
        sums[0] = sum(loss.detach().double() for loss in losses)
        sums[1] = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        dist.all_reduce(sums)
        norm = sums[1].sqrt().item()
        torch._foreach_mul_(gradients, min(1.0, CLIP / (norm + 1e-6)))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sums[0].item(), norm

    def state(self) -> dict[str, int]:
        moments = [t for s in self.optimizer.state.values() for t in s.values() if t.dim()]
        held = sum(map(size, self.model.parameters()))
        return {"parameters": held, "gradients": held, "optimizer": sum(map(size, moments))}
