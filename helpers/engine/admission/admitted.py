"""The first way to lay a model out that gives its class's own results, or what would be wrong."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..context.attention import Context
from ..data_parallel.axes import expert_axes
from ..errors import UserError
from ..memory.recomputing import group_size
from ..messages.carriers import sum_of
from ..models.architecture import candidates
from ..models.families import Family
from ..models.objectives import build
from ..pipeline.micro_batches import MicroBatch, own_tokens
from ..plan import ParallelPlan
from ..tensor.boundary import Boundary
from ..tensor.partial_gradients import whole_gradients
from .kinds import Kind, kind_of, made_by
from .trial import FAILS, Trial, WholeRows

# a model, its family, the plan, what passes between ranks, the pipeline rank whose part is made
LayOut = Callable[[nn.Module, Family, ParallelPlan, Boundary, int], nn.Module]
# tp and cp, each where it is wider than 1, and those of experts where ep deals them out
Axes = tuple[DeviceMesh | None, DeviceMesh | None, DeviceMesh | None]
ALONE: Axes = (None, None, None)


def admitted(model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh, lay_out: LayOut) -> Family:
    """The first way to lay the model out under the plan that gives the class's own results.

    Every rank must call it, for the ranks of tp try their parts together.

    Raises:
        UserError: there is none; the line says what would be different, and what works.
    """
    kind, device = kind_of(model), mesh.device_type
    if kind.changed and plan.tp * plan.cp * plan.ep > 1:
        raise UserError(
            f"{kind.changed}, which tp, cp and ep cannot be tried on: put it into a class of your "
            "own, or take dp_shard, dp_replicate or pp"
        )
    tp, cp = (mesh[axis] if plan.degrees[axis] > 1 else None for axis in ("tp", "cp"))
    axes = tp, cp, expert_axes(mesh, plan)
    _check_dealt(kind, plan, device, lay_out)
    return admitted_kind(kind, _tried(plan), axes, device, lay_out)


def check_alone(model: nn.Module, plan: ParallelPlan, lay_out: LayOut) -> None:
    """Raise a UserError if the model is refused under the plan whatever tp and cp are: as much as
    one process can try."""
    alone = replace(_tried(plan), tp=1, cp=1, ep=1, dp_shard=1, sequence_parallel=False)
    kind = kind_of(model)
    _check_dealt(kind, plan, "cpu", lay_out)
    admitted_kind(kind, alone, ALONE, "cpu", lay_out)


def _check_dealt(kind: Kind, plan: ParallelPlan, device: str, lay_out: LayOut) -> None:
    """Raise a UserError if parameters or rows cannot be dealt out to ranks as the plan does."""
    if plan.zero:
        check_hooks(kind, device, lay_out)
    check_parts(kind, device, plan.dp > 1, plan.pp > 1 or plan.microbatches > 1)


def _tried(plan: ParallelPlan) -> ParallelPlan:
    """What of a plan can change the results, in its smallest form."""
    group = group_size(plan.activation)
    return ParallelPlan(
        tp=plan.tp,
        pp=min(plan.pp, 2),
        cp=plan.cp,
        ep=plan.ep,
        dp_shard=plan.dp_shard if plan.ep > 1 else 1,
        cp_attention=plan.cp_attention,
        sequence_parallel=plan.sequence_parallel,
        activation="group_2" if group > 1 else plan.activation,
        schedule="interleaved" if plan.stages > plan.pp else "1f1b",
    )


@lru_cache(maxsize=256)  # a run asks once, a test suite many times
@torch.enable_grad()  # who only evaluates has turned gradients off
def admitted_kind(
    kind: Kind, plan: ParallelPlan, axes: Axes, device: str, lay_out: LayOut
) -> Family:
    """The same of any model of that kind."""
    heads = plan.tp * (plan.cp if plan.cp_attention == "ulysses" else 1)
    pairs = group_size(plan.activation) > 1 or plan.pp > 1  # what goes past a stage is seen
    trial = Trial(kind.model_class, kind.config, heads, 2 if pairs else 1, device)
    if kind.attention == "eager" and trial.differs_with("eager"):
        raise UserError(
            f"{kind.config.model_type} computes something else with attn_implementation='eager', "
            "which a laid-out model does not: leave it out"
        )

    def difference(family: Family, plan: ParallelPlan) -> str | None:
        return _difference(trial, family, plan, axes, lay_out)

    reasons = []
    for family in _ways(kind, plan):
        reason = difference(family, plan)
        if reason is None:
            return family
        reasons.append(reason)
    if not reasons:
        raise UserError(
            f"{kind.config.model_type} has no experts that ep could deal out: leave it out"
        )
    works = [
        words
        for words, simpler in _simpler(plan)
        if any(not difference(f, simpler) for f in _ways(kind, simpler))
    ]
    reason = min(reasons, key=lambda reason: reason.startswith(FAILS))  # what differs says more
    raise UserError(
        f"{kind.config.model_type} would not be exact under {_words(plan)}: {reason}; "
        + (f"exact here: {', '.join(works)}" if works else "no other layout would be, either")
    )


def _ways(kind: Kind, plan: ParallelPlan) -> list[Family]:
    """Ways to lay such a model out; one that was changed computes all of its blocks itself."""
    ways = candidates(made_by(kind), plan.tp, plan.cp)
    if plan.ep > 1:
        ways = [way for way in ways if way.experts]
    return [way for way in ways if not (kind.changed and way.splits)]


def one_process(
    kind: Kind, device: str, lay_out: LayOut, alone: Boundary
) -> tuple[Trial, Callable[[nn.Module, int], nn.Module]]:
    """Small copies of a model, and what lays one out in one process, inside this boundary.

    Raises:
        UserError: the engine would not be exact even so.
    """
    plan = ParallelPlan()
    family = admitted_kind(kind, plan, ALONE, device, lay_out)
    trial = Trial(kind.model_class, kind.config, device=device)
    return trial, lambda model, rank: lay_out(model, family, plan, alone, rank)


@lru_cache(maxsize=64)
@torch.enable_grad()
def looks_ahead(kind: Kind, device: str) -> bool:
    """Does what follows a token change what the model predicts from it? Then padding is masked."""
    return Trial(kind.model_class, kind.config, device=device).looks_ahead


def check_parts(kind: Kind, device: str, over_ranks: bool, in_turn: bool) -> None:
    """Raise a UserError if a batch in parts is not what it is whole.

    Args:
        over_ranks: its rows are dealt out to data ranks.
        in_turn: they are dealt out to micro-batches, which come one after another.
    """
    if over_ranks or in_turn:
        _check_rows(kind, device)
    if over_ranks:
        _check_buffers(kind, device, False, "dp_shard and dp_replicate")
    if in_turn:
        _check_buffers(kind, device, True, "pp and microbatches")


@lru_cache(maxsize=64)
@torch.enable_grad()
def _check_rows(kind: Kind, device: str) -> None:
    """Raise a UserError if rows of a batch see each other, or have more than their own terms of its
    gradients."""
    trial, name = Trial(kind.model_class, kind.config, device=device), kind.model_class.__name__
    if trial.mixes_rows:
        raise UserError(
            f"{name} computes a row with the others of its batch, as a norm of batches does, which "
            "dp_shard, dp_replicate, pp and microbatches deal out: take one process, or tp"
        )
    if wrong := trial.wrong_gradient_in_parts:
        does = "adds to its gradients what is not of its loss, as to balance experts"
        instead = "let its configuration leave that out"
        if wrong.rounded_to:
            dtype = str(wrong.rounded_to).removeprefix("torch.")
            does = f"has {wrong.name} in {dtype}, to which its gradient is rounded"
            instead = "make it of the dtype of the others"
        raise UserError(
            f"{name} {does}, and for each part of a batch anew, which dp_shard, dp_replicate, pp "
            f"and microbatches deal out: {instead}, or take one process, or tp"
        )


@lru_cache(maxsize=64)
def _check_buffers(kind: Kind, device: str, in_turn: bool, parts: str) -> None:
    """Raise a UserError if what a buffer becomes depends on which rows are together, as a running
    mean."""
    trial, name = Trial(kind.model_class, kind.config, device=device), kind.model_class.__name__
    if wrong := trial.wrong_buffer_in_parts(in_turn):
        raise UserError(
            f"{name} changes its buffer {wrong} with each batch, which {parts} deal out: take one "
            "process, or tp"
        )


def check_next_words(config: Any) -> None:
    """Raise a UserError if a model of this configuration that is to predict each next token sees
    that token: an encoder under a head for it, which learns to copy."""
    with torch.device("meta"):
        kind = kind_of(build(config, "lm", torch.float32))
    if looks_ahead(kind, "cpu"):
        raise UserError(
            f"{config.model_type} sees the words that follow: to predict the next one it would "
            "copy it; train it with task mlm or classify-head, or as a decoder (is_decoder)"
        )


@lru_cache(maxsize=64)
@torch.enable_grad()
def check_precision(kind: Kind, dtype: torch.dtype, device: str, lay_out: LayOut) -> None:
    """Raise a UserError if the model cannot run with its parameters in this dtype."""
    trial, lay_out_small = one_process(kind, device, lay_out, Boundary())
    reason = trial.fails_in(lay_out_small, dtype)
    if reason is not None:
        raise UserError(
            f"{kind.config.model_type} does not run with its weights in "
            f"{str(dtype).removeprefix('torch.')} ({reason}): take precision fp32"
        )


@lru_cache(maxsize=64)
@torch.enable_grad()
def check_hooks(kind: Kind, device: str, lay_out: LayOut) -> None:
    """Raise a UserError if the hooks of the model's blocks, by which dp_shard has their parameters
    at hand, do not run."""
    trial, lay_out_small = one_process(kind, device, lay_out, Boundary())
    if not trial.calls_blocks(lay_out_small):
        raise UserError(
            f"{kind.config.model_type} runs its blocks past their hooks, by which dp_shard has "
            "their parameters at hand: take dp_replicate"
        )


def _difference(
    trial: Trial, family: Family, plan: ParallelPlan, axes: Axes, lay_out: LayOut
) -> str | None:
    tp, cp, experts = axes
    context = Context(cp, plan.cp_attention) if plan.cp > 1 else None
    experts = experts if plan.ep > 1 else None
    boundary = Boundary(
        tp if plan.tp > 1 else None, plan.sequence_parallel, context, experts=experts
    )
    return trial.difference(
        lambda model, rank: lay_out(model, family, plan, boundary, rank),
        ranks=plan.pp,
        gradients=partial(_gradients_of_one, ranks=plan.ep),
        rows=_rows_of(plan, context, axes),
    )


def _rows_of(plan: ParallelPlan, context: Context | None, axes: Axes) -> WholeRows | None:
    _, cp, experts = axes
    if context is None and plan.ep == 1:
        return None
    group = experts.get_group(0) if plan.ep > 1 else cp.get_group()
    if context is None:
        return OverRanks(group, plan.dp_shard)
    return PartsOfRows(group, plan.dp_shard, context, plan, cp.get_local_rank())


def _gradients_of_one(model: nn.Module, ranks: int) -> dict[str, Tensor]:
    """Whole gradients where all ranks of ep have the same rows: experts' are of all of them, and to
    those of a rank no token may have gone."""
    for parameter in map(model.get_parameter, model.dealt):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    found = whole_gradients(model)
    return {n: g / ranks if n in model.dealt else g for n, g in found.items()}


class OverRanks(WholeRows):
    """How ranks of ep and cp agree: terms are summed over all, so that none finds other last bits
    than another. Of ep each has all rows."""

    def __init__(self, group: ProcessGroup, times: int) -> None:
        """`times`: that each row is in the group."""
        self.group, self.times = group, times

    def whole(self, term: Tensor) -> Tensor:
        return sum_of(term, self.group) / self.times


class PartsOfRows(OverRanks):
    """How ranks of cp hand a batch to a laid-out model: each has a part of its rows."""

    def __init__(
        self, group: ProcessGroup, times: int, context: Context, plan: ParallelPlan, rank: int
    ) -> None:
        super().__init__(group, times)
        self.context, self.plan, self.rank = context, plan, rank

    def inputs(self, batch: dict[str, Tensor], config: Any) -> dict[str, Any]:
        ids = batch["input_ids"]
        whole = MicroBatch(ids.cpu(), batch["labels"].cpu())
        own = own_tokens(whole, self.rank, self.plan.cp, multiple=self.plan.sequence_parts)
        self.context.part = own.part
        return own.to(ids.device).inputs(config)

    def working(self) -> AbstractContextManager:
        return self.context.working_on(None)


def _simpler(plan: ParallelPlan) -> Iterator[tuple[str, ParallelPlan]]:
    """Plans with less, and what to call them."""
    alone, gathered = ParallelPlan(), replace(plan, ep=1, dp_shard=1)
    and_ep = " and ep" if plan.ep > 1 else ""  # of which cp's ranks are a part
    options = {
        f"the same without cp{and_ep}": replace(gathered, cp=1),
        "the same without ep": gathered,
        "tp without sequence_parallel": replace(plan, sequence_parallel=False),
        "pp": replace(alone, pp=plan.pp),
        "one stage a rank": replace(plan, schedule="1f1b"),
        "recomputing": replace(alone, activation=plan.activation),
        "dp_shard and dp_replicate": alone,
    }
    words_of = {other: words for words, other in options.items() if other != plan}
    yield from ((words, other) for other, words in words_of.items())


def _words(plan: ParallelPlan) -> str:
    extra = ["sequence_parallel"] * plan.sequence_parallel
    extra += [f"schedule={plan.schedule}"] * (plan.stages > plan.pp)
    extra += [f"activation={plan.activation}"] * (plan.activation != "none")
    return " with ".join([plan.describe(), *extra])
