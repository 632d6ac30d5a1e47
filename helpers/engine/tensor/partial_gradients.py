"""Parameters that every rank of tp holds whole, and of whose gradient each has one term of the sum.

norms between the layers    under sequence parallelism a rank sees a part of the sequence
norms of single heads       a rank sees its heads
a key-value head            where ranks outnumber heads, several use one
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from ..messages.carriers import all_reduce
from ..models.architecture import has, text_config
from ..models.families import Family, kv_heads
from . import layers
from .boundary import Boundary
from .layers import bind
from .shards import local


def inside(path: str, module: str) -> bool:
    """Is a module another, or in it?"""
    return bool(path) and (path == module or path.startswith(f"{module}."))


def mark_outside(
    model: nn.Module,
    family: Family,
    boundary: Boundary,
    block: nn.Module,
    prefix: str,
    sublayers: Iterable[str],
) -> None:
    """What lies outside the boundary sees a part of the sequence; two norms before a common
    crossing lie inside, and see a part of the gradient. A row layer's bias sees all of it."""
    outside = [
        (path, module)
        for path, module in block.named_modules()
        if not any(inside(path, sublayer) for sublayer in sublayers) and path not in family.row
    ]
    names = [
        f"{path}.{name}" for path, m in outside for name, _ in m.named_parameters(recurse=False)
    ]
    norms = {name.rpartition(".")[0] for name in names}
    together = family.parallel_residual(model.config) and len(norms) > 1
    if boundary.sequence_parallel or together:
        model.partial_gradients |= {f"{prefix}.{name.removeprefix('.')}" for name in names}


def mark_inside(
    model: nn.Module,
    family: Family,
    boundary: Boundary,
    block: nn.Module,
    prefix: str,
    sublayers: Iterable[str],
) -> None:
    """What of a split sublayer every rank holds whole, as norms of single heads, sees the part of
    the gradient that comes from this rank's heads. A norm of a split width is split, too."""
    widths = _split_widths(model, family, block)
    for sublayer in sublayers:
        for path, module in block.get_submodule(sublayer).named_modules(prefix=sublayer):
            names = [name for name, _ in module.named_parameters(recurse=False)]
            if path in family.split_layers or not names:
                continue
            width = module.weight.shape if names == ["weight"] else ()
            if len(width) == 1 and width[0] in widths:
                _split_norm(module, boundary, widths[width[0]])
                if not hasattr(module, "rows"):
                    continue
            model.partial_gradients |= {f"{prefix}.{path}.{name}" for name in names}


def _split_widths(
    model: nn.Module, family: Family, block: nn.Module
) -> dict[int, list[slice] | None]:
    """Widths inside the boundary of which a rank has a part, and where ranks outnumber the heads of
    keys the rows of it. Norms of single heads are as wide as a head, and whole."""
    paths = [path for path in (*family.shared_kv, *family.column) if has(block, path)]
    layers = {path: block.get_submodule(path) for path in paths}
    groups = kv_heads(text_config(model.config)) if family.shared_kv else 1
    heads = {layers[path].out_features // groups for path in family.shared_kv if path in layers}
    return {
        layer.out_features: getattr(layer, "rows", None)
        for layer in layers.values()
        if isinstance(layer, nn.Linear) and layer.out_features not in heads
    }


def _split_norm(norm: nn.Module, boundary: Boundary, rows: list[slice] | None) -> None:
    if rows is None:
        bind(norm, layers.split_norm, boundary, weight=0)
    else:
        norm.rows = rows
        bind(norm, layers.split_norm, boundary)


def mark(model: nn.Module, prefix: str, module: nn.Module) -> None:
    """All parameters of a module whose names begin with `prefix`."""
    model.partial_gradients |= {prefix + name for name, _ in module.named_parameters()}


def sum_partial_gradients(
    model: nn.Module, gradients: dict[str, Tensor], group: ProcessGroup | None
) -> None:
    """Sum over tp, in one message, the gradients of which each rank has one term."""
    names = sorted(model.partial_gradients & gradients.keys())
    if group is None or group.size() == 1 or not names:
        return
    flat = torch.cat([gradients[name].flatten() for name in names])
    all_reduce(flat, group)
    sizes = [gradients[name].numel() for name in names]
    for name, piece in zip(names, flat.split(sizes), strict=True):
        gradients[name] = piece.view_as(gradients[name])


def whole_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a model that no data ranks share, whole and in the shapes of files."""
    parameters = {n: p for n, p in model.named_parameters() if p.grad is not None}
    gradients = {name: local(p.grad) for name, p in parameters.items()}
    sum_partial_gradients(model, gradients, model.boundary.group)
    return {
        name: _whole(gradient, parameters[name]).reshape(
            model.stored_shapes.get(name, parameters[name].shape)
        )
        for name, gradient in gradients.items()
    }


def _whole(gradient: Tensor, parameter: Tensor) -> Tensor:
    if not isinstance(parameter, DTensor):
        return gradient
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        gradient, mesh, placements, shape=parameter.shape, stride=parameter.stride()
    ).full_tensor()
