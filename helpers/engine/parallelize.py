"""The one page that shows the order: what is done to a model to lay it out over a mesh."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .context.attention import Context
from .data_parallel.axes import state_axes
from .data_parallel.layouts import apply_fully_shard
from .errors import UserError
from .files.weights import blank_model, fill, save_model
from .memory.recomputing import apply_activations, group_size, heed_switch
from .messages.carriers import sum_of
from .models.architecture import candidates, text_config
from .models.causal_loss import apply_loss
from .models.families import Family
from .models.objectives import build, objective_of
from .models.self_check import PACKED, Trial, WholeRows
from .pipeline.micro_batches import MicroBatch, own_tokens
from .pipeline.stages import cut
from .plan import ParallelPlan
from .precision.compiling import apply_compile
from .precision.float8 import apply_float8, check_float8
from .tensor.boundary import Boundary
from .tensor.partial_gradients import whole_gradients
from .tensor.split import apply_tensor


def parallelize(
    model: nn.Module,
    plan: ParallelPlan,
    mesh: DeviceMesh,
    fill: Callable[[nn.Module], None] | None = None,
    check: bool = True,
) -> nn.Module:
    """Lay a transformers model out over the mesh, in place: of a causal language model, a masked
    one, or one that classifies rows.

    The model must hold the same weights on every rank, or be on the meta device. Its class and the
    names of its parameters stay; modules that other pipeline ranks own go. Optimizers are made
    afterwards: the parameters are new objects.

    Args:
        fill: replaces layers of this rank's part of the model, before data ranks share it.
        check: see first, on a few small layers, that the layout gives the class's own loss and
            gradients; every rank takes part.

    Raises:
        UserError: the model is laid out already, the plan does not fit it, or the layout would not
            compute what the model's class does.
    """
    if any(isinstance(p, DTensor) for p in model.parameters()) or hasattr(model, "plan"):
        raise UserError("this model is laid out already: hand parallelize a plain one, once")
    plan.validate(model.config, world_size=mesh.size(), task=objective_of(model).task)
    if getattr(text_config(model.config), "layerdrop", None):
        raise UserError("layerdrop leaves layers out at random, on each rank others: set it to 0")
    if plan.precision == "fp8":
        check_float8(mesh.device_type)
    began = time.perf_counter()
    family = admitted(model, plan, mesh) if check else candidates(model, plan.tp, plan.cp)[0]
    floating = (p.dtype for p in model.parameters() if p.is_floating_point())
    model.kind = _kind(model) if check else None  # whose documents are tried, too
    model.own_dtype = getattr(model, "own_dtype", None) or next(floating)
    model.class_name = type(model).__name__  # which fully_shard changes
    model.check_s = time.perf_counter() - began
    boundary = Boundary(
        mesh["tp"] if plan.tp > 1 else None, plan.sequence_parallel, context_of(plan, mesh)
    )
    lay_out(model, family, plan, boundary, mesh.get_local_rank("pp"))
    if fill is not None:
        fill(model)
    model.state_axes = state_axes(mesh, plan)
    if plan.zero == 3:
        apply_fully_shard(model, plan, mesh)  # last: it takes over the parameters as it finds them
    for stage in model.stages:
        stage.listen()  # after fully_shard, which must see what was received
    model.plan, model.mesh = plan, mesh
    answer_transformers(model)
    return model


def context_of(plan: ParallelPlan, mesh: DeviceMesh) -> Context | None:
    """What attention over the ranks of cp needs; None where there is one."""
    return Context(mesh["cp"], plan.cp_attention) if plan.cp > 1 else None


def lay_out(
    model: nn.Module, family: Family, plan: ParallelPlan, boundary: Boundary, pipeline_rank: int
) -> nn.Module:
    """All of it but what data ranks share."""
    cut(model, family, plan.schedule_of(1), plan.stage_layers, pipeline_rank)
    apply_tensor(model, family, boundary, postpone_weights=plan.splits_backward)
    heed_switch(model, family)
    if plan.precision == "fp8":
        apply_float8(model, family, boundary)
    if plan.compile:
        apply_compile(model, family)  # inside what is recomputed, which then runs the graph again
        boundary.stay_out_of_graphs()
    kept = boundary.context.kept if boundary.context else None
    apply_activations(model, family, plan.activation, plan.offload, kept)
    apply_loss(model, family)
    model.family, model.masters = family, {}
    return model


def answer_transformers(model: nn.Module) -> None:
    """What users of transformers call on a model, in the meaning that it has under the plan."""

    def save_pretrained(save_directory: str | Path, **options: Any) -> None:
        """Every rank must call it; see files/weights.py."""
        if unknown := sorted(set(options) - {"is_main_process", "safe_serialization"}):
            raise UserError(f"save_pretrained of a laid-out model takes no {unknown[0]}")
        save_model(model, save_directory)

    def resize_token_embeddings(*_: Any, **__: Any) -> None:
        raise UserError("resize the vocabulary before the model is laid out, not after")

    model.save_pretrained = save_pretrained
    model.resize_token_embeddings = resize_token_embeddings


def admitted(model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> Family:
    """The first way to lay the model out under the plan that gives the class's own results.

    Every rank must call it, for the ranks of tp try their parts together.

    Raises:
        UserError: there is none; the line says what would be different, and what works.
    """
    kind = _kind(model)
    axes = tuple(mesh[axis] if plan.degrees[axis] > 1 else None for axis in ("tp", "cp"))
    return _admitted(kind, _tried(plan), axes, mesh.device_type)


Axes = tuple[DeviceMesh | None, DeviceMesh | None]  # tp and cp, where they are wider than 1


@dataclass(frozen=True)
class _Kind:
    """A model's class and configuration. Two are alike if they say the same."""

    model_class: type[nn.Module]
    facts: str
    config: Any = field(compare=False)


def _kind(model: nn.Module) -> _Kind:
    return _Kind(type(model), model.config.to_json_string(use_diff=False), model.config)


@lru_cache(maxsize=64)
@torch.enable_grad()  # who only evaluates has turned gradients off
def check_documents(kind: _Kind, device: str) -> bool:
    """Can attention take the documents of packed rows one by one? Else a mask keeps them apart.

    Raises:
        UserError: neither gives the documents of a row what the class gives to each alone.
    """
    plan = ParallelPlan()
    family = _admitted(kind, plan, (None, None), device)
    trial = Trial(kind.model_class, kind.config, device=device)
    alone = Boundary(None, False, None)
    for by_documents in (True, False):
        row = own_tokens(MicroBatch(**PACKED), 0, 1, by_documents=by_documents)
        inputs = row.to(torch.device(device)).inputs(kind.config)
        with alone.working_on(None, row.rows):
            if trial.keeps_documents(
                lambda model, rank: lay_out(model, family, plan, alone, rank), inputs
            ):
                return by_documents
    raise UserError(
        f"{kind.config.model_type} lets documents of a row see each other, however they are kept "
        "apart: train it without packing"
    )


def check_documents_of(config: Any) -> None:
    """The same of a model that is not made yet."""
    with torch.device("meta"):
        model = build(config, None, torch.float32)
    check_documents(_kind(model), "cpu")


def _tried(plan: ParallelPlan) -> ParallelPlan:
    """What of a plan can change the results, in its smallest form."""
    group = group_size(plan.activation)
    return ParallelPlan(
        tp=plan.tp,
        pp=min(plan.pp, 2),
        cp=plan.cp,
        cp_attention=plan.cp_attention,
        sequence_parallel=plan.sequence_parallel,
        activation="group_2" if group > 1 else plan.activation,
    )


@lru_cache(maxsize=256)  # a run asks once, a test suite many times
@torch.enable_grad()
def _admitted(kind: _Kind, plan: ParallelPlan, axes: Axes, device: str) -> Family:
    heads = plan.tp * (plan.cp if plan.cp_attention == "ulysses" else 1)
    trial = Trial(kind.model_class, kind.config, heads, group_size(plan.activation), device)
    with torch.device("meta"):
        model = kind.model_class._from_config(copy.deepcopy(kind.config))
    reasons = []
    for family in candidates(model, plan.tp, plan.cp):
        difference = _difference(trial, family, plan, axes)
        if difference is None:
            return family
        reasons.append(difference)
    works = [
        words
        for words, simpler in _simpler(plan)
        if any(
            not _difference(trial, f, simpler, axes)
            for f in candidates(model, simpler.tp, simpler.cp)
        )
    ]
    raise UserError(
        f"{kind.config.model_type} would not be exact under {_words(plan)}: {reasons[0]}; "
        + (f"exact here: {', '.join(works)}" if works else "no other layout would be, either")
    )


def _difference(trial: Trial, family: Family, plan: ParallelPlan, axes: Axes) -> str | None:
    tp, cp = axes
    context = Context(cp, plan.cp_attention) if plan.cp > 1 else None
    boundary = Boundary(tp if plan.tp > 1 else None, plan.sequence_parallel, context)
    return trial.difference(
        lambda model, rank: lay_out(model, family, plan, boundary, rank),
        ranks=plan.pp,
        gradients=whole_gradients,
        rows=PartsOfRows(context, plan, cp.get_local_rank()) if context else None,
    )


class PartsOfRows(WholeRows):
    """How ranks of cp hand a batch to a laid-out model."""

    def __init__(self, context: Context, plan: ParallelPlan, rank: int) -> None:
        self.context, self.plan, self.rank = context, plan, rank

    def inputs(self, batch: dict[str, Tensor], config: Any) -> dict[str, Any]:
        ids = batch["input_ids"]
        whole = MicroBatch(ids.cpu(), batch["labels"].cpu())
        own = own_tokens(whole, self.rank, self.plan.cp, multiple=self.plan.sequence_parts)
        self.context.part = own.part
        return own.to(ids.device).inputs(config)

    def working(self) -> AbstractContextManager:
        return self.context.working_on(None)

    def whole(self, term: Tensor) -> Tensor:
        return sum_of(term, self.context.group)


def _simpler(plan: ParallelPlan) -> Iterator[tuple[str, ParallelPlan]]:
    """Plans with less, and what to call them."""
    alone = ParallelPlan()
    options = {
        "the same without cp": replace(plan, cp=1),
        "tp without sequence_parallel": replace(plan, sequence_parallel=False),
        "pp": replace(alone, pp=plan.pp),
        "recomputing": replace(alone, activation=plan.activation),
        "dp_shard and dp_replicate": alone,
    }
    words_of = {other: words for words, other in options.items() if other != plan}
    yield from ((words, other) for other, words in words_of.items())


def _words(plan: ParallelPlan) -> str:
    extra = ["sequence_parallel"] * plan.sequence_parallel
    extra += [f"activation={plan.activation}"] * (plan.activation != "none")
    return " with ".join([plan.describe(), *extra])


def load_model(
    source: str | Path,
    plan: ParallelPlan,
    mesh: DeviceMesh,
    *,
    config: Any = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: torch.device | str = "cpu",
    from_scratch: bool = False,
    task: str | None = None,
) -> nn.Module:
    """A transformers model, laid out over the mesh, on this rank's device.

    Args:
        source: a preset, a folder or a hub id. A preset has no weights and begins with random ones.
        task: that its head is for: lm, mlm or classify-head, see models/objectives.py; what the
            configuration's `architectures` are for where None. A head that classifies begins with
            random weights where the source has none of it.
        seed: of random weights.
        from_scratch: begin with random weights whatever the source holds.
        config: used in place of the source's own; the weights must fit it.

    Raises:
        UserError: there is no such model, its files are broken, or the plan does not fit it.
    """
    model, files = blank_model(source, config, dtype, from_scratch, task)
    parallelize(model, plan, mesh)
    fill(model, files, seed, device)
    return model
