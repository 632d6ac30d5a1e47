"""Split a model's blocks, embedding and head over the tensor axis, by its family's record."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn

from ..errors import UserError
from ..models import attention
from ..models.architecture import has, inside, text_config
from ..models.block_rules import drops_out
from ..models.blocks import on_input
from ..models.families import KV_HEADS, Family, head_dim, kv_heads
from . import layers
from .boundary import Boundary
from .collectives import SharedPart
from .ends import leave_blocks, split_ends
from .in_parts import view_in_parts
from .layers import CONV1D, FORWARDS, LINEAR, bind
from .partial_gradients import mark, mark_inside, mark_outside
from .shards import shard_parameter

# what an attention may call its numbers of heads
HEADS = ("num_heads", "num_attention_heads", "n_heads")

TANH_GELU = partial(F.gelu, approximate="tanh")  # one object: compiled blocks tell layers by theirs


def apply_tensor(
    model: nn.Module, family: Family, boundary: Boundary, postpone_weights: bool = False
) -> None:
    """Split every block, the embedding and the head, and bind the forwards.

    Args:
        postpone_weights: let the gradients of the linear layers' weights come later.

    Sets on the model:
        stored_shapes: name -> the shape in files, of parameters that are held in another.
        split_shapes: name -> the shape that tp splits, of parameters that are held in the files'.
        partial_gradients: parameters of which each rank's gradient is one term of the sum over tp.

    Raises:
        UserError: a rule of the record matches no module.
    """
    if boundary.sequence_parallel and not family.attention:
        raise UserError(f"sequence_parallel needs attention that tp splits, not {family.name}'s")
    model.boundary, model.stored_shapes, model.partial_gradients = boundary, {}, set()
    model.split_shapes = {}
    if family.splits:
        _split_blocks(model, family, boundary)
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
        leave_blocks(model, family, boundary, list(last.blocks.values()))


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
    as the first of some mixtures of experts, stays whole where it lacks a layer."""
    parallel_residual = family.parallel_residual(model.config)
    for kind in ("column", "packed", "row"):
        for path in _present(block, family, getattr(family, kind)):
            layer = find(block, path, family)
            if kind == "packed":
                view_in_parts(model, layer, f"{prefix}.{path}", family.packed[path])
            dims = (LINEAR if isinstance(layer, nn.Linear) else CONV1D)[kind]
            _check_width(layer, kind, f"{prefix}.{path}", boundary.size)
            bind(layer, FORWARDS[kind], boundary, **dims)
            layer.reduces_output = not parallel_residual
    for path in _present(block, family, family.shared_kv):
        split_kv(model, find(block, path, family), boundary, f"{prefix}.{path}")
    for path in _present(block, family, family.gathered):
        _share_rows(model, find(block, path, family), boundary, f"{prefix}.{path}")
    for path, forward in family.forwards.items():
        bind(find(block, path, family), forward, boundary)
    if boundary.size > 1:
        _deal_out(block, family.per_head, boundary)
    here = [path for path in family.sublayers if has_split(block, family, path)]
    if any(inside(family.attention, path) for path in here):
        find(block, family.attention, family).boundary = boundary
        _count_own_heads(model, block.get_submodule(family.attention), family, boundary.size)
    if parallel_residual:
        bind(block, family.parallel_forward, boundary)
    else:
        for path in here:
            find(block, path, family).register_forward_pre_hook(
                on_input(boundary.enter), with_kwargs=True
            )
        _draw_own_dropout(block, boundary)
    if boundary.size > 1:
        mark_inside(model, family, boundary, block, prefix, here)
        mark_outside(model, family, boundary, block, prefix, [*here, *family.experts])


def _deal_out(block: nn.Module, per_head: Iterable[str], boundary: Boundary) -> None:
    """Parameters with a number for each head, which not every block has, over the ranks."""
    here = {path for path, _ in block.named_parameters()}
    for path in filter(here.__contains__, per_head):
        owner, _, name = path.rpartition(".")
        shard_parameter(block.get_submodule(owner), name, boundary.mesh, 0)


def _present(block: nn.Module, family: Family, paths: Iterable[str]) -> list[str]:
    """The paths of a record, and of what was found out those that this block has."""
    return [path for path in paths if family.recorded or has(block, path)]


def has_split(block: nn.Module, family: Family, sublayer: str) -> bool:
    """Is there a split layer that this of the sublayers is the nearest one around?"""
    for path in () if family.recorded else family.split_layers:
        around = [one for one in family.sublayers if inside(path, one)]
        if around and max(around, key=len) == sublayer and has(block, path):
            return True
    return family.recorded


def _check_width(layer: nn.Module, kind: str, path: str, ranks: int) -> None:
    """Raise a UserError if what is split of a layer has no part of one size for each rank."""
    if isinstance(layer, nn.Linear):
        width = layer.in_features if kind == "row" else layer.weight.shape[-2]
        if width % ranks:
            raise UserError(f"tp={ranks} does not divide the width {width} of {path}")


def split_kv(model: nn.Module, layer: nn.Linear, boundary: Boundary, path: str) -> None:
    """Keys and values by whole heads; where ranks outnumber heads each holds all and uses one's.

    Falcon's fused projection is [groups, queries of a group + 2, head_dim]: with one group the
    queries are split and its key and value are every rank's.
    """
    groups = kv_heads(text_config(model.config)) if boundary.size > 1 else 1
    if groups % boundary.size == 0:
        bind(layer, layers.column_linear, boundary, weight=0, bias=0)
        return
    group_rows = layer.out_features // groups
    width = head_dim(text_config(model.config))
    layer.rows = kv_rows(group_rows, width, groups, boundary.size, boundary.rank)
    layer.shared = _shared(boundary, groups, width if group_rows == width else 2 * width)
    bind(layer, layers.shared_kv_linear, boundary)
    mark(model, f"{path}.", layer)


def _share_rows(model: nn.Module, layer: nn.Linear, boundary: Boundary, path: str) -> None:
    """A layer of all queries, then keys, then values: rows over the ranks, whoever uses them."""
    _check_width(layer, "gathered", path, boundary.size)
    if boundary.size == 1:
        bind(layer, layers.column_linear, boundary)
        return
    config = text_config(model.config)
    heads, groups = config.num_attention_heads, kv_heads(config)
    width = layer.out_features // (heads + 2 * groups)
    layer.rows = own_heads(heads, groups, width, boundary.size, boundary.rank)
    if groups < boundary.size:
        layer.shared = _shared(boundary, groups, 2 * width)
    bind(layer, layers.gathered_linear, boundary, weight=0, bias=0)


def _shared(boundary: Boundary, groups: int, columns: int) -> SharedPart:
    """The keys and values of a rank's products that others have, too."""
    place, number = divmod(boundary.rank, boundary.size // groups)
    return SharedPart(columns, place, groups, number == 0, boundary.group)


def own_heads(heads: int, groups: int, head_dim: int, ranks: int, rank: int) -> list[slice]:
    """The rows of a rank's queries, keys and values in a layer of all queries, then keys, then
    values. With more ranks than key-value heads several have the same ones."""
    each, own = heads // ranks, max(1, groups // ranks)
    first = rank * groups // ranks
    starts = (rank * each, heads + first, heads + groups + first)
    return [
        slice(start * head_dim, (start + count) * head_dim)
        for start, count in zip(starts, (each, own, own), strict=True)
    ]


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


def find(root: nn.Module, path: str, family: Family) -> nn.Module:
    try:
        return root.get_submodule(path)
    except AttributeError:
        raise UserError(f"{family.name}'s record names {path}, which the model has not") from None


def _count_own_heads(model: nn.Module, attention: nn.Module, family: Family, ranks: int) -> None:
    """An attention of transformers' own that counts heads counts this rank's; GPT-2's cuts its
    fused projection by a width that it keeps."""
    if ranks == 1:
        return
    if hasattr(attention, "split_size"):
        attention.split_size //= ranks
    if family.forwards:
        return
    config = text_config(model.config)
    heads, groups = config.num_attention_heads, kv_heads(config)
    for names, count in ((HEADS, heads), (KV_HEADS, groups)):
        for name in names:
            if getattr(attention, name, None) == count:
                setattr(attention, name, max(1, count // ranks))
    if any(inside(path, family.attention) for path in (*family.packed, *family.gathered)):
        attention.config = copy.copy(attention.config)
        attention.config.num_attention_heads = heads // ranks


def _draw_own_dropout(block: nn.Module, boundary: Boundary) -> None:
    """Under sequence parallelism ranks have other tokens, and draw other dropout of them."""
    if boundary.sequence_parallel and any(map(drops_out, block.modules())):
        block.forward = partial(_in_own_stream, boundary, block, block.forward)


def _in_own_stream(
    boundary: Boundary, block: nn.Module, forward: Callable, *args: Any, **kwargs: Any
) -> Any:
    with boundary.own_stream(boundary.sequence_parallel and block.training):
        return forward(*args, **kwargs)
