"""Split a model's blocks, embedding and head over the tensor axis, by its family's record."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from ..errors import UserError
from ..messages.carriers import all_reduce
from ..models import attention
from ..models.blocks import on_input
from ..models.families import Family, kv_heads
from ..pipeline.stages import Elsewhere
from . import layers
from .boundary import Boundary
from .layers import bind
from .shards import local

# kind of layer -> its forward, and the dim along which each of its parameters is split
LINEAR: dict[str, tuple[Any, dict[str, int]]] = {
    "column": (layers.column_linear, {"weight": 0, "bias": 0}),
    "row": (layers.row_linear, {"weight": 1}),
}
CONV1D: dict[str, tuple[Any, dict[str, int]]] = {
    "column": (layers.column_conv1d, {"weight": 1, "bias": 0}),
    "fused_qkv": (layers.fused_qkv_conv1d, {"weight": 2, "bias": 1}),
    "row": (layers.row_conv1d, {"weight": 0}),
}


TANH_GELU = partial(F.gelu, approximate="tanh")  # one object: compiled blocks tell layers by theirs


def apply_tensor(
    model: nn.Module, family: Family, boundary: Boundary, postpone_weights: bool = False
) -> None:
    """Split every block, the embedding and the head, and bind the forwards.

    Args:
        postpone_weights: let the gradients of the linear layers' weights come later.

    Sets on the model:
        stored_shapes: name -> the shape in files, of parameters that are held in another.
        partial_gradients: parameters of which each rank's gradient is one term of the sum over tp.

    Raises:
        UserError: a rule of the record matches no module.
    """
    if boundary.sequence_parallel and not family.attention:
        raise UserError(f"sequence_parallel needs attention that tp splits, not {family.name}'s")
    model.boundary, model.stored_shapes, model.partial_gradients = boundary, {}, set()
    if family.splits:
        _split_blocks(model, family, boundary)
    if model.stored_shapes:
        model.register_state_dict_post_hook(_as_stored)
        model.register_load_state_dict_pre_hook(_as_held)
    split_ends(model, family, boundary)
    if postpone_weights:
        layers.postpone_weight_gradients(model)


def _split_blocks(model: nn.Module, family: Family, boundary: Boundary) -> None:
    if family.attention:
        attention.use(model)
    fuse_gelu(model)
    stack = model.get_submodule(family.blocks)
    for name, block in stack.named_children():
        split_block(model, family, boundary, block, f"{family.blocks}.{name}")
    first, last = model.stages[0], model.stages[-1]
    if boundary.sequence_parallel and first.first:
        first.entry.register_forward_pre_hook(on_input(boundary.begin), with_kwargs=True)
    if last.last:
        norm = model.get_submodule(family.norm)
        norm.register_forward_hook(lambda module, args, out: boundary.enter(out))
        if boundary.sequence_parallel:
            _mark(model, f"{family.norm}.", norm)


def fuse_gelu(model: nn.Module) -> None:
    """The tanh form of GELU of GPT-2, GPT-J and GPT-NeoX in one pass over memory, where
    transformers takes eight; the formula is the same."""
    from transformers.activations import FastGELUActivation, NewGELUActivation

    for module in model.modules():
        if isinstance(module, (FastGELUActivation, NewGELUActivation)):
            module.forward = TANH_GELU


def split_block(
    model: nn.Module, family: Family, boundary: Boundary, block: nn.Module, prefix: str
) -> None:
    """Split a block's layers, and let work cross the boundary around them. A block of another kind,
    as the first of some mixtures of experts, stays whole where it lacks a sublayer."""
    here = [path for path in family.sublayers if family.norms is not None or has(block, path)]
    parallel_residual = family.parallel_residual(model.config)
    for kind in ("column", "fused_qkv", "row"):
        for path in _within(here, getattr(family, kind)):
            layer = find(block, path, family)
            if kind == "fused_qkv":
                _view_qkv_as_thirds(model, layer, f"{prefix}.{path}")
            forward, dims = (LINEAR if isinstance(layer, nn.Linear) else CONV1D)[kind]
            bind(layer, forward, boundary, **dims)
            layer.reduces_output = not parallel_residual
    for path in _within(here, family.shared_kv):
        split_kv(model, find(block, path, family), boundary, f"{prefix}.{path}")
    for path, forward in family.forwards.items():
        bind(find(block, path, family), forward, boundary)
    if family.attention in here:
        find(block, family.attention, family).boundary = boundary
        _count_own_heads(block.get_submodule(family.attention), boundary.size)
    if parallel_residual:
        bind(block, family.parallel_forward, boundary)
    else:
        for path in here:
            find(block, path, family).register_forward_pre_hook(
                on_input(boundary.enter), with_kwargs=True
            )
    _norms_and_dropouts(model, family, boundary, block, prefix)
    _mark_unsplit(model, family, boundary, block, prefix, here)


def _within(sublayers: list[str], paths: tuple[str, ...]) -> list[str]:
    return [path for path in paths if path.split(".")[0] in sublayers]


def has(module: nn.Module, path: str) -> bool:
    """Is there a module at that path?"""
    return any(name == path for name, _ in module.named_modules())


def split_kv(model: nn.Module, layer: nn.Linear, boundary: Boundary, path: str) -> None:
    """Keys and values by whole heads; where ranks outnumber heads each holds all and uses one's.

    Falcon's fused projection is [groups, queries of a group + 2, head_dim]: with one group the
    queries are split and its key and value are every rank's.
    """
    groups = kv_heads(model.config)
    if groups % boundary.size == 0:
        bind(layer, layers.column_linear, boundary, weight=0, bias=0)
        return
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layer.rows = kv_rows(
        layer.out_features // groups, head_dim, groups, boundary.size, boundary.rank
    )
    bind(layer, layers.shared_kv_linear, boundary)
    _mark(model, f"{path}.", layer)


def kv_rows(group_rows: int, head_dim: int, groups: int, ranks: int, rank: int) -> list[slice]:
    """The rows of a layer of keys or values that a rank uses, with more ranks than groups.

    Args:
        group_rows: rows of a group: head_dim, or in a fused layer (queries + 2) * head_dim.
    """
    sharing = ranks // groups  # ranks that use the same group
    begin = rank // sharing * group_rows
    if group_rows == head_dim:
        return [slice(begin, begin + head_dim)]
    keys = begin + group_rows - 2 * head_dim
    queries = (keys - begin) // sharing
    first = begin + rank % sharing * queries
    return [slice(first, first + queries), slice(keys, keys + 2 * head_dim)]


def split_ends(model: nn.Module, family: Family, boundary: Boundary) -> None:
    """Embedding and head by vocabulary, where they are here; tied, they stay one parameter. A head
    whose logits the model makes itself stays as it is."""
    embedding, head = (
        model.get_submodule(path) if path else None for path in (family.embedding, family.head)
    )
    begins, ends = (
        isinstance(module, nn.Module) and not isinstance(module, Elsewhere)
        for module in (embedding, head)
    )
    tied = begins and ends and embedding.weight is head.weight
    whole = Boundary(boundary.mesh)  # positions and masks need all of the sequence
    if begins and boundary.size > 1:
        bind(embedding, layers.vocabulary_embedding, whole, weight=0)
    if not ends or family.whole_logits:
        return
    head.transform, head.late = family.logits, model.many_losses
    if tied:
        head.weight = embedding.weight
        bind(head, layers.vocabulary_head, whole, bias=0)
    else:
        bind(head, layers.vocabulary_head, whole, weight=0, bias=0)


def find(root: nn.Module, path: str, family: Family) -> nn.Module:
    try:
        return root.get_submodule(path)
    except AttributeError:
        raise UserError(f"{family.name}'s record names {path}, which the model has not") from None


def _view_qkv_as_thirds(model: nn.Module, layer: nn.Module, path: str) -> None:
    """Hold [in, 3*out] as [in, 3, out], in which each third can be split; no memory moves."""
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        model.stored_shapes[f"{path}.{name}"] = parameter.shape
        folded = parameter.detach().unflatten(-1, (3, -1))
        setattr(layer, name, nn.Parameter(folded, requires_grad=parameter.requires_grad))


def _as_stored(model: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A state dict has the shapes of the model's class, save of tensors that are split."""
    for name, shape in model.stored_shapes.items():
        tensor = state.get(prefix + name)
        if tensor is not None and not isinstance(tensor, DTensor):
            state[prefix + name] = tensor.reshape(shape)


def _as_held(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    held = dict(model.named_parameters())
    for name in model.stored_shapes:
        tensor = state.get(prefix + name)
        if tensor is not None and not isinstance(tensor, DTensor):
            state[prefix + name] = tensor.reshape(held[name].shape)


def _count_own_heads(attention: nn.Module, tp: int) -> None:
    """GPT-2's attention cuts its fused projection by a width that it keeps: now this rank's."""
    if hasattr(attention, "split_size"):
        attention.split_size //= tp


def _norms_and_dropouts(model, family, boundary, block, prefix) -> None:
    """What lies outside the boundary sees a part of the sequence, or a part of the gradient."""
    if family.norms is None:
        _outside(model, family, boundary, block, prefix)
        return
    norms = [path for path in family.norms if hasattr(block, path)]
    inside = family.parallel_residual(model.config) and len(norms) > 1
    if boundary.size > 1 and (boundary.sequence_parallel or inside):
        for path in norms:
            _mark(model, f"{prefix}.{path}.", block.get_submodule(path))
    if boundary.sequence_parallel and not family.parallel_residual(model.config):
        for path in family.dropouts:
            bind(block.get_submodule(path), _own_dropout, boundary)


def _outside(model, family, boundary, block, prefix) -> None:
    """The same of a block without a record: all that is in none of its split sublayers."""
    if not boundary.sequence_parallel:
        return
    for path, module in block.named_modules():
        if path.split(".")[0] in family.sublayers:
            continue
        names = [name for name, _ in module.named_parameters(recurse=False)]
        model.partial_gradients |= {".".join(filter(None, (prefix, path, n))) for n in names}
        if isinstance(module, nn.Dropout):
            bind(module, _own_dropout, boundary)


def _mark_unsplit(model, family, boundary, block, prefix, sublayers) -> None:
    """What of a split sublayer every rank holds whole, as norms of single heads, sees the part of
    the gradient that comes from this rank's heads. A row layer's bias sees all of it."""
    if boundary.size == 1:
        return
    split = (*family.column, *family.fused_qkv, *family.shared_kv, *family.row)
    for sublayer in sublayers:
        for path, module in block.get_submodule(sublayer).named_modules(prefix=sublayer):
            if path not in split:
                names = [name for name, _ in module.named_parameters(recurse=False)]
                model.partial_gradients |= {f"{prefix}.{path}.{name}" for name in names}


def _own_dropout(self: nn.Dropout, x: Any) -> Any:
    return self.boundary.dropout(x, self.p, self.training)


def _mark(model: nn.Module, prefix: str, module: nn.Module) -> None:
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
