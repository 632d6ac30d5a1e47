"""The engine itself, as any rank of any world, with tensors that have sizes and no values.

    plan = ParallelPlan(tp=8, dp_shard=16)
    run = dry_run(load_config("gptj-6b"), plan, rank=5, batch=256, seq_len=1024)
    run.peak_bytes, run.at_peak, run.states, run.flops, run.messages, run.summary

parallelize and Trainer run as they do in training, on torch's fake tensors and over a process group
that sends nothing: no GPU, no second process, no memory for the model. Nothing is modelled. Memory,
FLOPs and messages are those of the operations that the engine calls; what a device's allocator,
kernels and communication library take beside the tensors is not seen.
"""

import copy
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from helpers.engine.admission.admitted import check_alone
from helpers.engine.data_parallel.axes import data_group, token_group
from helpers.engine.errors import UserError
from helpers.engine.files.blank import tie
from helpers.engine.messages.boards import memory_of_boards
from helpers.engine.messages.carriers import Done
from helpers.engine.models.architecture import candidates, tied_names
from helpers.engine.models.configurations import check_counts, check_length
from helpers.engine.models.families import Family
from helpers.engine.models.objectives import CAUSAL, build
from helpers.engine.parallelize import lay_out, parallelize
from helpers.engine.pipeline.messages import PipelineMessages, message_groups
from helpers.engine.plan import AXES, ParallelPlan
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.fake_device import (
    SizesOnly,
    device_of_its_own,
    evenly_routed,
    no_values,
    without_torchs_log,
)
from helpers.planner.dry_run.tensor_watch import Watch

Found = TypeVar("Found")


class MessageKind(NamedTuple):
    """A kind of message of the rank.

    axis: of the mesh; `dp` for both data axes together, `world` for all ranks.
    ranks: of the group.
    payload_bytes: of the whole tensor that is reduced, gathered, sent or received.
    """

    axis: str
    kind: str
    ranks: int
    payload_bytes: int


@dataclass(frozen=True)
class DryRun:
    """What a rank holds, computes and sends in a step.

    states: bytes of parameters, gradients and optimizer, as Trainer.state_bytes counts them.
    at_peak: bytes by category at the step's fullest moment: parameters, buffers, optimizer;
        activations, which forwards leave for backwards, and gradients, which backwards leave for
        the optimizer; temporary: all else, also parameters that ZeRO-3 has gathered.
    largest: the most bytes of each category, each at a moment of its own.
    flops: of products and attention, over the whole square of scores.
    messages: how many of each kind.
    host_waits: how often the host has waited for a device of its own.
    """

    states: dict[str, int]
    at_peak: dict[str, int]
    largest: dict[str, int]
    flops: int
    messages: Counter[MessageKind]
    host_waits: int = 0

    @property
    def peak_bytes(self) -> int:
        return sum(self.at_peak.values())

    @property
    def summary(self) -> dict[str, Any]:
        """All of it as plain data; messages by axis and kind, with their number and bytes."""
        sent: dict[str, dict[str, dict[str, int]]] = {}
        for message, count in self.messages.items():
            kinds = sent.setdefault(message.axis, {})
            total = kinds.setdefault(message.kind, {"ranks": message.ranks, "count": 0, "bytes": 0})
            total["count"] += count
            total["bytes"] += count * message.payload_bytes
        return asdict(self) | {"peak_bytes": self.peak_bytes, "messages": sent}


def dry_run(
    config: Any,
    plan: ParallelPlan,
    rank: int = 0,
    *,
    batch: int,
    seq_len: int,
    device: str = "cpu",
    packed: bool = False,
) -> DryRun:
    """One training step of a transformers configuration as `rank` of the plan's world. Every token
    is taken to have a label.

    Args:
        batch: samples of a step, over all ranks.
        device: `cpu`, with the kernels that run there; or `meta`, which stands for an accelerator:
            as there, no operation takes tensors of both, attention and dropout are fused kernels,
            and the loss has larger chunks.
        packed: let rows have several documents.

    Raises:
        UserError: it is no configuration or no plan, the plan does not fit the model or would not
            be exact, there is no such rank or device, the model has too few positions, a number is
            not above 0, the plan compiles, or offloads to the same memory, a process group is
            there already, transformers cannot build the model, or its class asks for values.
    """
    if not hasattr(config, "model_type"):
        raise UserError(f"give a configuration, as load_config('gptj-6b'), not {config!r:.40}")
    if not isinstance(plan, ParallelPlan):
        raise UserError(f"give a plan, as ParallelPlan(dp_shard=8), not {plan!r:.40}")
    if device not in ("cpu", "meta"):
        raise UserError(f"device is cpu or meta, not {device!r:.40}")
    plan.validate(config)
    check_counts(batch, seq_len)
    check_length(config, seq_len)
    if type(rank) is not int or not 0 <= rank < plan.world_size:
        raise UserError(f"rank must be 0 to {plan.world_size - 1}, not {rank!r:.40}")
    for switch in ("offload", "compile"):
        if getattr(plan, switch) and (switch, device) != ("offload", "meta"):
            raise UserError(f"a dry run cannot {switch}: leave {switch} out of the plan")
    return first_way(
        config,
        plan,
        lambda model, family: _step(model, family, plan, rank, batch, seq_len, device, packed),
    )


def first_way(config: Any, plan: ParallelPlan, run: Callable[[nn.Module, Family], Found]) -> Found:
    """What `run` says of a model of the configuration and the first way of laying it out that runs:
    on tensors without values nothing is equal, and a trial would say nothing.

    Raises:
        UserError: no way does.
    """
    model, errors = _without_memory(config), []
    ways = candidates(model, plan.tp, plan.cp)
    if not ways[0].recorded:
        check_alone(model, plan, lay_out)
    for family in ways:
        try:
            with without_torchs_log():
                return run(model, family)
        except Exception as error:  # of a class's forward, which the next way may leave as it is
            if family.recorded:
                raise
            errors.append(error)
            model = _without_memory(config)
    if isinstance(errors[0], UserError):
        raise errors[0]
    raise no_values(config.model_type, errors[0]) from errors[0]


def _without_memory(config: Any) -> nn.Module:
    own = copy.deepcopy(config)  # laying a model out changes its configuration
    with torch.device("meta"):
        return build(own, CAUSAL.task, torch.float32)


def _step(
    model: nn.Module,
    family: Family,
    plan: ParallelPlan,
    rank: int,
    batch: int,
    seq_len: int,
    device: str,
    packed: bool,
) -> DryRun:
    with without_values(model, family, plan, rank, device) as (trainer, sizes):
        send_at_once(trainer.pipeline.messages)
        ids = torch.zeros((batch, seq_len), dtype=torch.long)
        trainer.update({p.name: torch.zeros_like(p.tensor) for p in trainer.parts})
        sizes.host_waits = 0
        found = watched(trainer, ids, ids, ids if packed else None)
        return replace(found, host_waits=sizes.host_waits)


@contextmanager
def without_values(
    model: nn.Module, family: Family, plan: ParallelPlan, rank: int, device: str
) -> Iterator[tuple[Trainer, SizesOnly]]:
    """A trainer of the model, which is on the meta device, as one rank of the plan's world."""
    own_device = device_of_its_own() if device == "meta" else nullcontext()
    with pretended(plan.world_size, rank), own_device, evenly_routed():
        mesh = plan.mesh("cpu")
        for together in (data_group, token_group):
            together(mesh, plan)  # makes a mesh of ranks, which are real numbers
        parallelize(model, plan, mesh, family=family)
        ties = tied_names(model)
        with SizesOnly(allow_non_fake_inputs=True) as sizes:
            model.to_empty(device=device)
            tie(model, ties)
            settle(model)
            trainer = Trainer(model, plan, mesh, lr=1e-3)
            trainer.compare_in = math.inf  # nobody has other weights or another batch
            yield trainer, sizes


def watch_of(trainer: Trainer) -> Watch:
    """A watch that knows what the trainer has before a step."""
    watch = Watch(trainer.device)
    moments = [t for state in trainer.optimizer.state.values() for t in state.values()]
    masters = [part.tensor for part in trainer.parts]
    watch.hold("parameters", map(local, trainer.model.parameters()))
    watch.hold("buffers", trainer.model.buffers())
    watch.hold("optimizer", moments + masters)
    return watch


def watched(
    trainer: Trainer, ids: Tensor, labels: Tensor, documents: Tensor | None = None
) -> DryRun:
    """One step of a trainer, real or not, as a DryRun. Its optimizer has its state already."""
    watch = watch_of(trainer)
    watch.leave_out([ids, labels])  # the whole batch stays in host memory
    watch.leave_out(memory_of_boards())
    with watch:
        trainer.step(ids, labels, documents)
    at_peak, largest = watch.peak()
    messages = _by_axis(watch, trainer)
    return DryRun(trainer.state_bytes(), at_peak, largest, watch.flops, messages)


def settle(model: nn.Module) -> None:
    """Let fully_shard do now what it does in the first forward. It gives uneven parameters other
    storages there unless it knows them by their address, which fake tensors have not; the trainer
    must meet the ones that stay."""
    if isinstance(model, FSDPModule):
        model._get_fsdp_state()._lazy_init()


def send_at_once(messages: PipelineMessages) -> None:
    """Let what a rank sends have left when it sends the next: the group that sends nothing never
    says so, and everything that was sent would stay in memory until the end of the step."""
    post = messages._post

    def posted(*args: Any) -> Done:
        post(*args)
        return Done()

    messages._post = posted


@contextmanager
def pretended(world: int, rank: int = 0) -> Iterator[None]:
    """A process group of `world` ranks of which this is one, and which sends nothing.

    Raises:
        UserError: this process is in a group already.
    """
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UserError("a dry run makes its own process group: leave the present one first")
    hook = sys.excepthook  # torch's, which puts the rank before every line, would stay
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
        _clear_sharding_prop_cache()  # it holds meshes, whose groups are gone


def _by_axis(watch: Watch, trainer: Trainer) -> Counter[MessageKind]:
    plan, mesh = trainer.plan, trainer.mesh
    axes = {mesh.get_group(axis).group_name: axis for axis in AXES}
    axes.setdefault(data_group(mesh, plan).group_name, "dp")
    axes.setdefault(trainer.model.state_axes.shard.get_group().group_name, "dp_shard x cp")
    axes.setdefault(token_group(mesh, plan).group_name, "dp x cp")
    axes |= {group.group_name: "pp" for group in message_groups(mesh).values()}
    messages: Counter[MessageKind] = Counter()
    for sent, count in watch.sent.items():
        axis = axes.get(sent.group, "world")
        messages[MessageKind(axis, sent.kind, sent.ranks, sent.payload_bytes)] += count
    return messages
