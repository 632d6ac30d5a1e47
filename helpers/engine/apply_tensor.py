"""Lay a model out over the tensor axis by its family's record."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import nn

from helpers.engine import attention, tensor
from helpers.engine.errors import UserError
from helpers.engine.families import Family, kv_heads
from helpers.engine.region import Region, on_input
from helpers.engine.stages import Elsewhere
from helpers.engine.tensor import bind

# kind of layer -> its forward, and the dim along which each of its parameters is split
LINEAR: dict[str, tuple[Any, dict[str, int]]] = {
    "column": (tensor.column_linear, {"weight": 0, "bias": 0}),
    "row": (tensor.row_linear, {"weight": 1}),
}
CONV1D: dict[str, tuple[Any, dict[str, int]]] = {
    "column": (tensor.column_conv1d, {"weight": 1, "bias": 0}),
    "thirds": (tensor.thirds_conv1d, {"weight": 2, "bias": 1}),
    "row": (tensor.row_conv1d, {"weight": 0}),
}


TANH_GELU = partial(F.gelu, approximate="tanh")  # one object: compiled blocks tell layers by theirs


def apply_tensor(model: nn.Module, family: Family, region: Region) -> None:
    """Split every block, the embedding and the head, and bind the forwards.

    Sets on the model:
        stored_shapes: name -> the shape in files, of parameters that are held in another.
        partial_gradients: parameters of which each rank's gradient is one term of the sum over tp.

    Raises:
        UserError: a rule of the record matches no module.
    """
    model.config._attn_implementation = attention.install()
    fuse_gelu(model)
    model.stored_shapes, model.partial_gradients = {}, set()
    stack = model.get_submodule(family.blocks)
    for name, block in stack.named_children():
        split_block(model, family, region, block, f"{family.blocks}.{name}")
    first, last = model.stages[0], model.stages[-1]
    if region.sequence_parallel and first.first:
        first.entry.register_forward_pre_hook(on_input(region.begin), with_kwargs=True)
    if last.last:
        norm = model.get_submodule(family.norm)
        norm.register_forward_hook(lambda module, args, out: region.enter(out))
        if region.sequence_parallel:
            _mark(model, f"{family.norm}.", norm)
    split_ends(model, family, region)


def fuse_gelu(model: nn.Module) -> None:
    """The tanh form of GELU of GPT-2, GPT-J and GPT-NeoX in one pass over memory, where
    transformers takes eight; the formula is the same."""
    from transformers.activations import FastGELUActivation, NewGELUActivation

    for module in model.modules():
        if isinstance(module, (FastGELUActivation, NewGELUActivation)):
            module.forward = TANH_GELU


def split_block(
    model: nn.Module, family: Family, region: Region, block: nn.Module, prefix: str
) -> None:
    one_sum = family.one_sum(model.config)
    for kind in ("column", "thirds", "row"):
        for path in getattr(family, kind):
            layer = find(block, path, family)
            if kind == "thirds":
                _fold_thirds(model, layer, f"{prefix}.{path}")
            forward, dims = (LINEAR if isinstance(layer, nn.Linear) else CONV1D)[kind]
            bind(layer, forward, region, **dims)
            layer.closes = not one_sum
    for path in family.shared_kv:
        split_kv(model, find(block, path, family), region, f"{prefix}.{path}")
    for path, forward in family.forwards.items():
        bind(find(block, path, family), forward, region)
    find(block, family.attention, family).region = region
    _divide(block.get_submodule(family.attention), region.size)
    if one_sum:
        bind(block, family.one_sum_forward, region)
    else:
        for path in family.sublayers:
            find(block, path, family).register_forward_pre_hook(
                on_input(region.enter), with_kwargs=True
            )
    _norms_and_dropouts(model, family, region, block, prefix)


def split_kv(model: nn.Module, layer: nn.Linear, region: Region, path: str) -> None:
    """Keys and values by whole heads; where ranks outnumber heads each holds all and uses one's.

    Falcon's fused projection is [groups, queries of a group + 2, head_dim]: with one group the
    queries are split and its key and value are every rank's.
    """
    groups = kv_heads(model.config)
    if groups % region.size == 0:
        bind(layer, tensor.column_linear, region, weight=0, bias=0)
        return
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layer.rows = kv_rows(layer.out_features // groups, head_dim, groups, region.size, region.rank)
    bind(layer, tensor.shared_kv_linear, region)
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


def split_ends(model: nn.Module, family: Family, region: Region) -> None:
    """Embedding and head by vocabulary, where they are here; tied, they stay one parameter."""
    embedding, head = find(model, family.embedding, family), find(model, family.head, family)
    begins, ends = (not isinstance(module, Elsewhere) for module in (embedding, head))
    tied = begins and ends and embedding.weight is head.weight
    whole = Region(region.mesh)  # positions and masks need all of the sequence
    if begins:
        bind(embedding, tensor.vocabulary_embedding, whole, weight=0)
    if tied:
        head.weight = embedding.weight
        bind(head, tensor.vocabulary_head, whole, bias=0)
    elif ends:
        bind(head, tensor.vocabulary_head, whole, weight=0, bias=0)


def find(root: nn.Module, path: str, family: Family) -> nn.Module:
    try:
        return root.get_submodule(path)
    except AttributeError:
        raise UserError(f"{family.name}'s record names {path}, which the model has not") from None


def _fold_thirds(model: nn.Module, layer: nn.Module, path: str) -> None:
    """Hold [in, 3*out] as [in, 3, out], in which each third can be split; no memory moves."""
    for name in ("weight", "bias"):
        parameter = getattr(layer, name)
        model.stored_shapes[f"{path}.{name}"] = parameter.shape
        folded = parameter.detach().unflatten(-1, (3, -1))
        setattr(layer, name, nn.Parameter(folded, requires_grad=parameter.requires_grad))


def _divide(module: nn.Module, tp: int) -> None:
    """Head counts and widths that transformers' own attention reads are this rank's."""
    for name in ("split_size",):
        if hasattr(module, name):
            setattr(module, name, getattr(module, name) // tp)


def _norms_and_dropouts(model, family, region, block, prefix) -> None:
    """What lies outside the region sees a part of the sequence, or a part of the gradient."""
    norms = [path for path in family.norms if hasattr(block, path)]
    inside = family.one_sum(model.config) and len(norms) > 1
    if region.size > 1 and (region.sequence_parallel or inside):
        for path in norms:
            _mark(model, f"{prefix}.{path}.", block.get_submodule(path))
    if region.sequence_parallel and not family.one_sum(model.config):
        for path in family.dropouts:
            bind(block.get_submodule(path), _own_dropout, region)


def _own_dropout(self: nn.Dropout, x: Any) -> Any:
    return self.region.dropout(x, self.p, self.training)


def _mark(model: nn.Module, prefix: str, module: nn.Module) -> None:
    model.partial_gradients |= {prefix + name for name, _ in module.named_parameters()}
