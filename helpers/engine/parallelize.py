"""The one page that shows the order: what is done to a model to lay it out over a mesh."""

from collections.abc import Callable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from .data_parallel.layouts import apply_fully_shard
from .errors import UserError
from .memory.recomputing import apply_activations
from .models.causal_loss import apply_loss
from .models.families import family_of
from .pipeline.stages import cut
from .plan import ParallelPlan
from .precision.compiling import apply_compile
from .tensor.boundary import Boundary
from .tensor.split import apply_tensor


def parallelize(
    model: nn.Module,
    plan: ParallelPlan,
    mesh: DeviceMesh,
    fill: Callable[[nn.Module], None] | None = None,
) -> nn.Module:
    """Lay a transformers causal language model out over the mesh, in place.

    The model must hold the same weights on every rank, or be on the meta device. Its class and the
    names of its parameters stay; modules that other pipeline ranks own go. Optimizers are made
    afterwards: the parameters are new objects.

    Args:
        fill: replaces layers of this rank's part of the model, before data ranks share it.

    Raises:
        UserError: the model is laid out already, its family is unknown, or the plan does not fit.
    """
    if any(isinstance(p, DTensor) for p in model.parameters()) or hasattr(model, "plan"):
        raise UserError("this model is laid out already: hand parallelize a plain one, once")
    plan.validate(model.config, world_size=mesh.size())
    family = family_of(model.config)
    cut(model, family, plan.schedule_of(1), plan.stage_layers, mesh.get_local_rank("pp"))
    boundary = Boundary(mesh["tp"], plan.sequence_parallel)
    apply_tensor(model, family, boundary, postpone_weights=plan.splits_backward)
    if plan.compile:
        apply_compile(model, family)  # inside what is recomputed, which then runs the graph again
    apply_activations(model, family, plan.activation, plan.offload)
    apply_loss(model, family)
    if fill is not None:
        fill(model)
    if plan.zero == 3:
        apply_fully_shard(model, plan, mesh)  # last: it takes over the parameters as it finds them
    for stage in model.stages:
        stage.listen()  # after fully_shard, which must see what was received
    model.plan, model.mesh = plan, mesh
    return model
