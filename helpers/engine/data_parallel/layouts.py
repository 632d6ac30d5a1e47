"""Data parallelism: who sums which gradients, and who keeps which state. One table:

                        parameters    gradients     optimizer    by
    DDP   dp_replicate  all           all           all          buckets, all-reduced
    ZeRO-1  dp_shard    all           all           1/n          buckets, reduce-scattered
    ZeRO-2  dp_shard    all           1/n           1/n          the same, each micro-batch
    ZeRO-3  dp_shard    1/n           1/n           1/n          fully_shard
    HSDP = MiCS         each of these over dp_shard, and summed over dp_replicate

Sources: Rajbhandari et al. 2020, ZeRO, section 5; Zhang et al. 2022, MiCS, section 3; Zhao et al.
2023, PyTorch FSDP, section 3.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import UserError
from ..memory.recomputing import units
from ..messages.carriers import Gather, Scatter, all_reduce
from ..plan import ParallelPlan
from ..tensor.shards import chunk, local
from .axes import token_group
from .buckets import AllReduced, Buckets, ReduceScattered
from .chunks import scatter_rows
from .gathers import Gathers
from .given import Heard
from .hsdp import ReplicaSums
from .owned_shards import OwnedShard, lower_, make_owned_shard, raise_


def apply_fully_shard(model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """ZeRO-3: shard every block, and what is left, over dp_shard and cp. The sum over dp_replicate
    is hsdp.py's.

    In low precision the shards are the float32 masters, and what is gathered are their copies.
    Blocks are gathered one ahead of their use, beside the stage's block before, and freed after it.

    Raises:
        UserError: what trains has several dtypes.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    low = plan.low_dtype(mesh.device_type)
    if low is not None:
        raise_(model)
    policy = MixedPrecisionPolicy(
        param_dtype=low, reduce_dtype=_sent_in(plan, low, None), cast_forward_inputs=False
    )
    *blocks, rest = _wrapped(model, plan)
    dtypes = {str(p.dtype).removeprefix("torch.") for p in _trainable(model).values()}
    if len(dtypes) > 1:
        raise UserError(
            f"zero_stage=3 needs parameters of one dtype, {model.config.model_type}'s are "
            f"{' and '.join(sorted(dtypes))}: zero_stage=1 and zero_stage=2 take several"
        )
    dealt = {model.get_parameter(name) for name in model.dealt}
    for unit in (*blocks, rest):
        fully_shard(unit, mesh=model.state_axes.shard, mp_policy=policy, ignored_params=dealt)
        unit[0].set_gradient_divide_factor(1.0)  # the loss is divided by all tokens already
        unit[0].set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    whole_backward = len(model.stages) == 1 and not plan.splits_backward  # through all blocks
    if whole_backward and hasattr(model, "set_reduce_scatter_unused_params"):
        model.set_reduce_scatter_unused_params(True)  # of experts to which no token of a rank went
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


class FullyShard:
    """ZeRO-3, which fully_shard does; here is what the trainer asks of it."""

    def __init__(self, model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> None:
        self.model, self.shard = model, model.state_axes.shard.get_group()
        self.gradient_bytes = 0
        every = self.units = _wrapped(model, plan)
        self.publish()
        self.trainable = _trainable(model)
        own_dtype = _dtype(self.trainable)
        self.dtype = _sent_in(plan, plan.low_dtype(mesh.device_type), own_dtype)
        self.heard = Heard(model, every, self.trainable)
        self.given = self.heard.names
        self.sums, self.replicas = None, mesh.get_group("dp_replicate")
        self.dealt = [p for name, p in self.trainable.items() if name in model.dealt]
        if plan.dp_replicate > 1:
            each_time = self.dtype != own_dtype
            self.sums = ReplicaSums(every, self.replicas, each_time, left_out=self.dealt)
        self.parts = [
            make_owned_shard(name, p, local(p.detach()), mesh, None, *_facts(model, name, p))
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
            local(p.grad).nbytes for p in self.trainable.values() if p.grad is not None
        )

    def add(self, name: str, gradient: Tensor) -> None:
        """Add a gradient of this rank's samples that came after the block's backward."""
        parameter = self.trainable[name]
        self.given.add(name)
        own = scatter_rows(gradient.to(self.dtype), self.shard)
        if self.sums and self.sums.each_time:
            all_reduce(own, self.sums.group)
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        local(parameter.grad).add_(own)

    def take(self) -> dict[str, Tensor]:
        for parameter in self.dealt:  # whose gradients are of the tokens of all ranks of ep already
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self.sums:
                all_reduce(local(parameter.grad), self.replicas)
        gradients = {n: local(p.grad) for n, p in self.trainable.items() if p.grad is not None}
        for parameter in self.trainable.values():  # a forward may have left the model others
            parameter.grad = None
        self.given.clear()
        return gradients

    def publish(self, beside: bool = False) -> None:
        """Let the next forward gather what the shards hold: a forward without a backward leaves
        what it gathered last."""
        for unit in self.units:
            unit[0].reshard()

    def settle(self) -> None:
        pass


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
        self.axes = model.state_axes
        self.shard = self.axes.shard.get_group()
        # with weight gradients that come later there is nothing complete to send before the end
        self.sends_each_time = self.stage == 2 and not plan.splits_backward
        low = plan.low_dtype(mesh.device_type)
        before = _trainable(model)
        self.parts = [
            self._owned(name, p, low is not None, *_facts(model, name, p))
            for name, p in before.items()
        ]
        if low is not None:
            lower_(model, low)
            model.masters = {part.name: part for part in self.parts}
            model.register_load_state_dict_pre_hook(_has_masters)
        self.trainable = _trainable(model)
        self.buckets: Buckets | None = None
        if plan.dp * plan.cp > 1 or low is not None:
            dtype = _sent_in(plan, low, _dtype(before))
            self.buckets = self._make_buckets(plan, _stages(model), dtype, hook)
        self.gathers: Gathers | None = None
        if self.stage:
            self.gathers = Gathers(model, self.buckets.buckets, self.shard)

    def _make_buckets(
        self,
        plan: ParallelPlan,
        stages: dict[str, int],
        dtype: torch.dtype,
        hook: Callable[..., Any] | None,
    ) -> Buckets:
        if self.stage == 0:
            return AllReduced(self.trainable, stages, dtype, token_group(self.mesh, plan), hook)
        replicate = self.mesh.get_group("dp_replicate")
        return ReduceScattered(self.trainable, stages, dtype, self.shard, replicate)

    def _owned(self, name: str, parameter: Tensor, copy: bool, *facts: Any) -> OwnedShard:
        tensor = local(parameter.detach())
        if self.stage:
            tensor = chunk(tensor, 0, self.shard.size(), self.shard.rank())
        if copy:
            tensor = tensor.float().clone()
        over = self.axes if self.stage else None
        return make_owned_shard(name, parameter, tensor, self.mesh, over, *facts)

    @property
    def given(self) -> set[str]:
        """Names of the parameters that had a gradient on this rank, in this step."""
        if self.buckets:
            return self.buckets.given
        return {name for name, p in self.trainable.items() if p.grad is not None}

    def begin(self, last: bool, complete: bool) -> None:
        if self.buckets:
            self.buckets.begin(sends=complete or self.sends_each_time, last=complete)

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
        gradients = {n: local(p.grad) for n, p in self.trainable.items() if p.grad is not None}
        for parameter in self.trainable.values():
            parameter.grad = None
        self.gradient_bytes = sum(t.nbytes for t in gradients.values())
        return gradients

    @torch.no_grad()
    def publish(self, beside: bool = False) -> None:
        """After the optimizer: bring the parts' new values into every rank's parameters; those that
        ranks have to gather may arrive beside the next forward, see gathers.py."""
        owned = {part.name: part.tensor for part in self.parts}
        if self.gathers is not None:
            self.gathers.begin(owned, beside)
            return
        for name, parameter in self.trainable.items():
            if parameter.dtype != owned[name].dtype:  # else it is the same memory
                local(parameter).copy_(owned[name])

    def settle(self) -> None:
        """Wait for what arrives beside the next forward."""
        if self.gathers is not None:
            self.gathers.settle()


def data_parallel(
    model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh, hook: Callable[..., Any] | None = None
) -> FullyShard | Bucketed:
    """The plan's row of the table.

    Raises:
        UserError: a communication hook is given that is none, or where state is sharded: no sum
            would be its.
    """
    if hook is not None and not callable(hook):
        raise UserError(f"hook must be one of torch's communication hooks, not {hook!r:.40}")
    if hook is not None and plan.zero:
        raise UserError(
            f"a communication hook sums the gradients of DDP, and {plan.describe()} shards state "
            "by ZeRO: take dp_replicate alone, or reduce_dtype"
        )
    if plan.zero == 3:
        return FullyShard(model, plan, mesh)
    return Bucketed(model, plan, mesh, hook)


def _facts(model: nn.Module, name: str, parameter: Tensor) -> tuple[bool, int, torch.Size | None]:
    """Does weight decay apply? To matrices, not to norms and biases, however they are held. How
    many pipeline ranks hold the parameter, and in which other shape do checkpoints?"""
    decays = len(model.stored_shapes.get(name, parameter.shape)) >= 2
    return decays, 2 if name == model.tied_over_ranks else 1, model.split_shapes.get(name)


def _stages(model: nn.Module) -> dict[str, int]:
    """Of each parameter, which of the rank's stages has it, counted from the last: one that is in
    no block is the first stage's where the model begins with that, else the last's."""
    of_blocks = {
        id(p): number
        for number, stage in enumerate(reversed(model.stages))
        for block in stage.blocks.values()
        for p in block.parameters()
    }
    begin = len(model.stages) - 1 if model.stages[0].first else 0
    after = tuple(f"{path}." for path in getattr(model, "after_blocks", ()))
    return {
        name: of_blocks.get(id(p), 0 if name.startswith(after) else begin)
        for name, p in model.named_parameters()
    }


def _has_masters(*_: Any) -> None:
    """The next update would put the masters' values back in the place of what is loaded."""
    raise UserError("load weights before the Trainer is made: it holds them in float32, too")


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _sent_in(
    plan: ParallelPlan, low: torch.dtype | None, own: torch.dtype | None
) -> torch.dtype | None:
    """The dtype in which ranks send gradients: their `own` where arithmetic is not in a `low` one
    and the plan asks for no other."""
    return plan.sum_dtype if low or plan.reduce_dtype != "fp32" else own


def _dtype(trainable: dict[str, Tensor]) -> torch.dtype:
    """Of what trains; of nothing, where a pipeline rank holds what is frozen alone."""
    return next((p.dtype for p in trainable.values()), torch.float32)
