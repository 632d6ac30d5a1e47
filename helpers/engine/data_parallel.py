"""Data parallelism: who sums which gradients, and who keeps which state. One table:

                        parameters    gradients     optimizer    by
    DDP   dp_replicate  all           all           all          buckets, stage 0
    ZeRO-1  dp_shard    all           all           1/n          buckets, stage 1
    ZeRO-2  dp_shard    all           1/n           1/n          buckets, stage 2
    ZeRO-3  dp_shard    1/n           1/n           1/n          fully_shard
    HSDP = MiCS         each of these over dp_shard, and summed over dp_replicate

Sources: Rajbhandari et al. 2020, ZeRO, section 5; Zhang et al. 2022, MiCS, section 3; Zhao et al.
2023, PyTorch FSDP, section 3.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from helpers.engine.activations import units
from helpers.engine.buckets import Buckets, gather_chunks, scatter_rows
from helpers.engine.exchange import Gather, Scatter
from helpers.engine.parts import LOW, Part, chunk_rows, lower_, make_part
from helpers.engine.plan import ParallelPlan
from helpers.engine.replicas import ReplicaSums
from helpers.engine.tensor import local


def apply_fully_shard(model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """ZeRO-3: shard every block, and what is left, over dp_shard. The sum over dp_replicate is
    replicas.py's.

    Blocks are gathered one ahead of their use, beside the stage's block before, and freed after it.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = LOW.get(plan.precision)
    policy = MixedPrecisionPolicy(
        param_dtype=low, reduce_dtype=reduce_dtype(plan) if low else None, cast_forward_inputs=False
    )
    *blocks, rest = _wrapped(model, plan)
    for unit in (*blocks, rest):
        fully_shard(unit, mesh=mesh["dp_shard"], mp_policy=policy)
        unit[0].set_gradient_divide_factor(1.0)  # the loss is divided by all tokens already
        unit[0].set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    for stage in units(model, plan.activation):
        for unit, following in itertools.pairwise(stage):
            unit[0].set_modules_to_forward_prefetch([following[0]])
    if mesh.device_type == "cpu":
        for unit in blocks:  # without streams, a gather goes on by itself only if asked to
            unit[0]._set_unshard_async_op(True)
        for unit in (*blocks, rest):
            unit[0].set_custom_all_gather(Gather())
            unit[0].set_custom_reduce_scatter(Scatter())


def _wrapped(model: nn.Module, plan: ParallelPlan) -> list[list[nn.Module]]:
    """What is gathered together: blocks that are recomputed together, and all that is left."""
    return [*itertools.chain(*units(model, plan.activation)), [model]]


def reduce_dtype(plan: ParallelPlan) -> torch.dtype:
    return LOW.get(plan.reduce_dtype, torch.float32)


class FullyShard:
    """ZeRO-3, which fully_shard does; here is what the trainer asks of it."""

    def __init__(self, model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
        self.model, self.mesh = model, mesh
        self.gradient_bytes = 0
        self.trainable = _trainable(model)
        held = next(iter(self.trainable.values())).dtype
        self.dtype = reduce_dtype(plan) if plan.precision in LOW else held
        self.sums = None
        if plan.dp_replicate > 1:
            every, replicas = _wrapped(model, plan), mesh.get_group("dp_replicate")
            self.sums = ReplicaSums(every, replicas, each_time=self.dtype != held)
        self.parts = [
            make_part(name, p, local(p.detach()), mesh, False, *_facts(model, name, p))
            for name, p in self.trainable.items()
        ]

    def begin(self, last: bool, complete: bool) -> None:
        """Before a backward: is it this rank's last of the step, and will its gradients be complete
        after it, or do gradients of weights come later?"""
        # shards sum gradients in every micro-batch: kept whole they would take what sharding saves
        self.model.set_is_last_backward(last)
        if self.sums:
            self.sums.complete = complete

    def end(self) -> None:
        if self.sums:
            self.sums.end()
        self.gradient_bytes = sum(
            local(p.grad).numel() * p.grad.element_size()
            for p in self.trainable.values()
            if p.grad is not None
        )

    def add(self, name: str, gradient: Tensor) -> None:
        """Add a gradient of this rank's samples that came after the block's backward."""
        parameter, shard = self.trainable[name], self.mesh.get_group("dp_shard")
        mine = scatter_rows(gradient.to(self.dtype), shard)
        if self.sums and self.sums.each_time:
            dist.all_reduce(mine, group=self.sums.group)
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local(parameter.grad).add_(mine)

    def take(self) -> dict[str, Tensor]:
        found = {n: local(p.grad) for n, p in self.trainable.items() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return found

    def publish(self) -> None:
        pass  # the next forward gathers what the optimizer wrote


class Bucketed:
    """DDP, ZeRO-1 and ZeRO-2: whole parameters on every rank, sums by buckets.

    In low precision the model holds bf16 or fp16 copies and the parts are the float32 masters.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        mesh: DeviceMesh,
        hook: Callable[..., Any] | None = None,
    ) -> None:
        self.mesh = mesh
        self.gradient_bytes = 0
        self.stage = plan.zero
        self.shard = mesh.get_group("dp_shard")
        low = LOW.get(plan.precision)
        before = _trainable(model)
        self.parts = [
            self._part(name, p, low is not None, *_facts(model, name, p))
            for name, p in before.items()
        ]
        if low is not None:
            lower_(model, low, keep=lambda name: False)
        self.trainable = _trainable(model)
        self.buckets = None
        if plan.dp > 1 or low is not None:
            everyone = data_group(mesh, plan)
            dtype = reduce_dtype(plan) if low or plan.reduce_dtype != "fp32" else None
            self.buckets = Buckets(
                self.trainable,
                self.shard,
                mesh.get_group("dp_replicate"),
                everyone,
                self.stage,
                dtype or next(iter(before.values())).dtype,
                hook,
                early=not plan.halves,
            )

    def _part(self, name: str, parameter: Tensor, copy: bool, decays: bool, stages: int) -> Part:
        held = local(parameter.detach())
        if self.stage:
            held = chunk_rows(held, self.shard.size(), self.shard.rank())
        if copy:
            held = held.float().clone()
        return make_part(name, parameter, held, self.mesh, self.stage > 0, decays, stages)

    def begin(self, last: bool, complete: bool) -> None:
        if self.buckets:
            self.buckets.begin(complete)

    def add(self, name: str, gradient: Tensor) -> None:
        """Add a gradient of this rank's samples that came after the block's backward."""
        if self.buckets:
            self.buckets.add(name, gradient)
            return
        parameter = self.trainable[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local(parameter.grad).add_(gradient)

    def end(self) -> None:
        if self.buckets:
            self.buckets.end()
            self.gradient_bytes = max(self.gradient_bytes, self.buckets.alive_bytes())

    def take(self) -> dict[str, Tensor]:
        if self.buckets:
            return self.buckets.take()
        found = {n: local(p.grad) for n, p in self.trainable.items() if p.grad is not None}
        for parameter in self.trainable.values():
            parameter.grad = None
        self.gradient_bytes = sum(t.numel() * t.element_size() for t in found.values())
        return found

    @torch.no_grad()
    def publish(self) -> None:
        """After the optimizer: bring the parts' new values into every rank's parameters."""
        parts = {part.name: part.tensor for part in self.parts}
        if not self.stage:
            for name, parameter in self.trainable.items():
                held = local(parameter)
                if held.dtype != parts[name].dtype:  # else the part is the parameter
                    held.copy_(parts[name])
            return
        for bucket in self.buckets.buckets:
            held = [local(p) for p in bucket.parameters]
            gather_chunks([parts[name] for name in bucket.names], held, self.shard)


def data_parallel(
    model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh, hook: Callable[..., Any] | None = None
) -> FullyShard | Bucketed:
    """The plan's row of the table."""
    if plan.zero == 3:
        return FullyShard(model, plan, mesh)
    return Bucketed(model, plan, mesh, hook)


def data_group(mesh: DeviceMesh, plan: ParallelPlan) -> dist.ProcessGroup:
    """All ranks that see other samples, replicas and shards together."""
    if plan.dp_replicate == 1:
        return mesh.get_group("dp_shard")
    if plan.dp_shard == 1:
        return mesh.get_group("dp_replicate")
    return mesh["dp_replicate", "dp_shard"]._flatten("dp").get_group()


def _facts(model: nn.Module, name: str, parameter: Tensor) -> tuple[bool, int]:
    """Does weight decay apply? To matrices, not to norms and biases, however they are held. And how
    many pipeline ranks hold the parameter?"""
    decays = len(model.stored_shapes.get(name, parameter.shape)) >= 2
    return decays, 2 if name == model.tied_over_ranks else 1


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
