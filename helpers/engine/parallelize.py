"""The one page that shows the order: what is done to a model to lay it out over a mesh."""

from types import MethodType
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from helpers.engine import tensor
from helpers.engine.causal import apply_loss
from helpers.engine.errors import UserError
from helpers.engine.families import Family, family_of
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor import Region, shard_parameter


def parallelize(model: nn.Module, plan: ParallelPlan, mesh: DeviceMesh) -> nn.Module:
    """Lay a transformers causal language model out over the mesh, in place.

    The model must hold the same weights on every rank, or be on the meta device. Its class and the
    names of its parameters stay. Optimizers are made afterwards: the parameters are new objects.

    Raises:
        UserError: the model is laid out already, its family is unknown, or the plan does not fit.
    """
    if getattr(model, "plan", None) is not None:
        raise UserError("this model is laid out already; parallelize a model only once")
    plan.validate(model.config, world_size=mesh.size())
    family = family_of(model.config)
    region = Region(mesh["tp"])
    apply_tensor(model, family, region)
    apply_loss(model, family)
    model.plan = plan
    return model


def apply_tensor(model: nn.Module, family: Family, region: Region) -> None:
    """Split every block, the embedding and the head over the tensor axis, and bind the forwards."""
    model.config._attn_implementation = "sdpa"  # also decides the kind of mask, None where causal
    for block in model.get_submodule(family.blocks):
        for path in family.column:
            become(block.get_submodule(path), tensor.ColumnLinear, region, weight=0, bias=0)
        for path in family.row:
            row = become(block.get_submodule(path), tensor.RowLinear, region, weight=1)
            row.closes = not family.one_sum
        for path, forward in family.forwards.items():
            bind(block.get_submodule(path), forward, region)
    embedding = model.get_submodule(family.embedding)
    become(embedding, tensor.VocabularyEmbedding, region, weight=0)
    model.get_submodule(family.norm).register_forward_hook(lambda *call: region.enter(call[-1]))
    become(model.get_submodule(family.head), tensor.VocabularyHead, region, weight=0, bias=0)


def become(module: nn.Module, kind: type[nn.Module], region: Region, **dims: int) -> Any:
    """Turn a layer into its tensor-parallel kind; `dims`: which dim of a parameter splits."""
    module.__class__ = kind
    module.region = region
    if region.size > 1:
        for name, dim in dims.items():
            if getattr(module, name) is not None:
                shard_parameter(module, name, region.mesh, dim)
    return module


def bind(module: nn.Module, forward: Any, region: Region) -> None:
    """Replace a module's forward by one of our own."""
    module.region = region
    module.forward = MethodType(forward, module)
