"""The one page that shows the order: what is done to a model to lay it out over a mesh."""

import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves

from .admission.admitted import admitted, check_parts, check_precision, looks_ahead
from .admission.given_model import check_given
from .admission.kinds import kind_of
from .admission.padded_rows import check_padding
from .admission.same_on_all import check_same_configuration, digest_of_weights
from .context.attention import Context
from .data_parallel.axes import expert_axes, state_axes
from .data_parallel.layouts import apply_fully_shard
from .errors import UserError, check_seed
from .experts.split import apply_experts, check_rows
from .files.weights import blank_model, digest_of_source, fill, save_model
from .memory.cpu_allocator import large_blocks_apart
from .memory.recomputing import apply_activations, heed_switch
from .models.architecture import candidates
from .models.causal_loss import apply_loss
from .models.families import Family
from .models.objectives import objective_of
from .pipeline.stages import cut
from .plan import ParallelPlan
from .precision.compiling import apply_compile
from .precision.float8 import apply_float8, check_float8
from .tensor.boundary import Boundary
from .tensor.in_parts import keep_shapes, unfold
from .tensor.split import apply_tensor

# all of a plan but what a step reads anew
LAID_OUT_BY = tuple(x.name for x in fields(ParallelPlan) if x.name != "microbatches")


def parallelize(
    model: nn.Module,
    plan: ParallelPlan,
    mesh: DeviceMesh,
    fill: Callable[[nn.Module], None] | None = None,
    check: bool = True,
    family: Family | None = None,
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
        family: how to lay it out, as somebody found; then nothing is tried.

    Raises:
        UserError: the model is laid out already or is not as its class makes it, the plan does not
            fit it, the ranks hand over different models, or the layout would not compute what the
            model's class does.
    """
    check_given(model, plan)
    if mesh.size() > 1:
        check_same_configuration(model)
    plan.validate(model.config, world_size=mesh.size(), task=objective_of(model).task)
    if plan.precision == "fp8":
        check_float8(mesh.device_type)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()  # as shards and messages need them
    began = time.perf_counter()
    check = check and family is None
    model.kind = kind_of(model) if check else None  # whose documents and padding are tried, too
    floating = next(p.dtype for p in model.parameters() if p.is_floating_point())
    if check:
        family, low = admitted(model, plan, mesh, lay_out), plan.low_dtype(mesh.device_type)
        check_rows(model, plan, low or floating)
        if low is not None:
            check_precision(model.kind, low, mesh.device_type, lay_out)
    ahead = not objective_of(model).shift
    if check and plan.sequence_parallel and not ahead:  # whose rows may be padded
        ahead = looks_ahead(model.kind, mesh.device_type)
    model.looks_ahead = ahead
    family = family or candidates(model, plan.tp, plan.cp)[0]
    model.own_dtype = getattr(model, "own_dtype", None) or floating
    model.class_name = type(model).__name__  # which fully_shard changes
    model.check_s = time.perf_counter() - began
    model.digest = digest_of_weights(model)
    boundary = Boundary(
        mesh["tp"] if plan.tp > 1 else None,
        plan.sequence_parallel,
        Context(mesh["cp"], plan.cp_attention) if plan.cp > 1 else None,
        experts=expert_axes(mesh, plan),
    )
    lay_out(model, family, plan, boundary, mesh.get_local_rank("pp"))
    if fill is not None:
        fill(model)
    if mesh.size() == 1:
        unfold(model)  # for optimizers that somebody makes themselves, and that look at shapes
    model.state_axes = state_axes(mesh, plan)
    if plan.zero == 3:
        apply_fully_shard(model, plan, mesh)  # last: it takes over the parameters as it finds them
    for stage in model.stages:
        stage.listen()  # after fully_shard, which must see what was received
    model.plan, model.mesh = plan, mesh
    model.check_padding = partial(check_padding, device=mesh.device_type, lay_out=lay_out)
    answer_transformers(model)
    if plan.dp * plan.cp > 1 or model.partial_gradients:
        model.register_forward_hook(_leave_sums_to_trainer, with_kwargs=True, prepend=True)
    return model


def lay_out(
    model: nn.Module, family: Family, plan: ParallelPlan, boundary: Boundary, pipeline_rank: int
) -> nn.Module:
    """All of it but what data ranks share."""
    cut(model, family, plan.schedule_of(1), plan.stage_layers, pipeline_rank)
    apply_tensor(model, family, boundary, postpone_weights=plan.splits_backward)
    apply_experts(model, family, boundary)
    keep_shapes(model)
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


def check_laid_out(model: nn.Module, plan: ParallelPlan) -> None:
    """Raise a UserError if the model is not laid out, or otherwise than the plan says: the trainer
    would send messages that no other rank waits for, or leave a switch out in silence."""
    if not isinstance(own := getattr(model, "plan", None), ParallelPlan):
        raise UserError("the model is not laid out: parallelize(model, plan, mesh) comes first")
    for name in LAID_OUT_BY:
        if getattr(own, name) != getattr(plan, name):
            raise UserError(
                f"the model was laid out with {name}={getattr(own, name)}, and the trainer's plan "
                f"says {getattr(plan, name)}: give both the same plan"
            )
    if plan.microbatches > 1 and model.kind is not None:
        check_parts(model.kind, model.mesh.device_type, over_ranks=False, in_turn=True)


def answer_transformers(model: nn.Module) -> None:
    """What users of transformers call on a model, in the meaning that it has under the plan."""

    def save_pretrained(save_directory: str | Path, **options: Any) -> None:
        """Every rank must call it; see files/weights.py."""
        if unknown := sorted(set(options) - {"is_main_process", "safe_serialization"}):
            raise UserError(f"save_pretrained of a laid-out model takes no {unknown[0]}")
        if not options.get("safe_serialization", True):
            raise UserError("save_pretrained writes safetensors: leave safe_serialization out")
        save_model(model, save_directory)

    def resize_token_embeddings(*_: Any, **__: Any) -> None:
        raise UserError("resize the vocabulary before the model is laid out, not after")

    def deepcopy(_: Any) -> None:
        raise UserError(
            "a copy of a laid-out model would compute with the original's weights: save_model and "
            "load_model, or copy it before it is laid out"
        )

    model.__deepcopy__ = deepcopy
    model.save_pretrained = save_pretrained
    model.resize_token_embeddings = resize_token_embeddings


def _leave_sums_to_trainer(model: nn.Module, _: Any, given: dict[str, Any], outputs: Any) -> None:
    """Refuse a backward that no Trainer takes: what it left would be one rank's terms of sums."""

    def refuse(_: Tensor) -> None:
        raise UserError(
            f"backward() under {model.plan.describe()} leaves each rank with its own terms of the "
            "gradients: trainer.backward(ids, labels) and trainer.gradients() sum them"
        )

    if given.get("checked"):  # by a Trainer
        return
    for output in tree_leaves(outputs):
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(refuse)


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
    check_seed(seed)
    with large_blocks_apart(mesh.device_type):
        model, files = blank_model(source, config, dtype, from_scratch, task)
        parallelize(model, plan, mesh)
        fill(model, files, seed, device)
        model.digest = digest_of_source(files, seed)
    return model
