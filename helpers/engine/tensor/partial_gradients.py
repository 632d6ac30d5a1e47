"""Parameters that every rank of tp holds whole, and of whose gradient each has one term of the sum.

norms between the layers    under sequence parallelism a rank sees a part of the sequence
norms of single heads       a rank sees its heads
a key-value head            where ranks outnumber heads, several use one
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from ..messages.carriers import all_reduce
from ..models.architecture import has, inside, text_config
from ..models.block_rules import OUT_OF_LOW_RANK
from ..models.families import Family, kv_heads
from . import layers
from .boundary import Boundary
from .layers import bind
from .shards import local

MESSAGE_BYTES = 25 * 2**20  # more is not sent sooner together, and would be copied beside itself


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
    for sublayer in sublayers:
        widths = split_widths(model.config, family, block, sublayer)
        for path, module in block.get_submodule(sublayer).named_modules(prefix=sublayer):
            own = module.named_parameters(recurse=False)
            names = [name for name, _ in own if f"{path}.{name}" not in family.per_head]
            if path in family.split_layers or not names:
                continue
            if splits_norm(module, widths):
                layer = block.get_submodule(widths[len(module.weight)])
                _split_norm(module, boundary, getattr(layer, "rows", None))
                if not hasattr(module, "rows"):
                    continue
            model.partial_gradients |= {f"{prefix}.{path}.{name}" for name in names}


def split_widths(config: Any, family: Family, block: nn.Module, sublayer: str) -> dict[int, str]:
    """Widths inside a sublayer of which a rank has a part, and the layer whose rows they are.
    Norms of single heads are as wide as a head, and whole, as are those of low ranks."""
    paths = [
        path
        for path in (*family.shared_kv, *family.column)
        if has(block, path) and inside(path, sublayer) and not path.endswith(OUT_OF_LOW_RANK)
    ]
    layers = {path: block.get_submodule(path) for path in paths}
    groups = kv_heads(text_config(config)) if family.shared_kv else 1
    heads = {layers[path].out_features // groups for path in family.shared_kv if path in layers}
    return {
        layer.out_features: path
        for path, layer in layers.items()
        if isinstance(layer, nn.Linear) and layer.out_features not in heads
    }


def splits_norm(module: nn.Module, widths: dict[int, str]) -> bool:
    """Is it a norm, without a shift, of one of these widths?"""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    return names == ["weight"] and module.weight.dim() == 1 and len(module.weight) in widths


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
    """Sum over tp, in place, the gradients of which each rank has one term: in messages of up to
    MESSAGE_BYTES, or of a single one that is larger."""
    names = sorted(model.partial_gradients & gradients.keys())
    if group is None or group.size() == 1:
        return
    few: list[Tensor] = []
    for gradient in map(gradients.__getitem__, names):
        if few and sum(one.nbytes for one in few) + gradient.nbytes > MESSAGE_BYTES:
            _sum_together(few, group)
            few = []
        few.append(gradient)
    if few:
        _sum_together(few, group)


def _sum_together(gradients: list[Tensor], group: ProcessGroup) -> None:
    if len(gradients) == 1 and gradients[0].is_contiguous():
        all_reduce(gradients[0], group)
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce(flat, group)
    pieces = flat.split([gradient.numel() for gradient in gradients])
    for gradient, piece in zip(gradients, pieces, strict=True):
        gradient.copy_(piece.view_as(gradient))


def whole_gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of a model that no data ranks share, whole and in the shapes of files."""
    parameters = {n: p for n, p in model.named_parameters() if p.grad is not None}
    gradients = {name: local(p.grad).clone() for name, p in parameters.items()}
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
