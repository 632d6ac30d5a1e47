"""Tensor parallelism: each layer's matrices over ranks, the layer's arithmetic local.

    x --enter--> [ column | column ] --act--> [ row | row ] --leave--> y
                 split by output              split by input, partial sums

A split parameter becomes a DTensor on the tensor axis, so its global shape and name stay known;
the forwards here take the local part and do plain arithmetic. A parameter that no rule splits stays
as it is, whole on every rank.

Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from helpers.engine.collectives import share
from helpers.engine.loss import token_loss
from helpers.engine.region import Region
from helpers.engine.weight_gradients import Later, linear


def local(parameter: Tensor | None) -> Tensor | None:
    """This rank's part of a parameter, sharded or not."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def bind(module: nn.Module, forward: Any, region: Region, **dims: int) -> None:
    """Give a module a forward of ours; `dims` says along which dim each parameter is split."""
    module.region = region
    module.forward = MethodType(forward, module)
    for name, dim in dims.items():
        if region.size > 1 and getattr(module, name, None) is not None:
            shard_parameter(module, name, region.mesh, dim)


def shard_parameter(module: nn.Module, name: str, mesh: DeviceMesh, dim: int) -> None:
    """Replace a parameter by a DTensor that keeps this rank's chunk along `dim`.

    The full tensor must be the same on every rank (or on the meta device): no data is sent.
    """
    full = getattr(module, name)
    part = _chunk(full.detach(), dim, mesh.size(), mesh.get_local_rank()).clone()
    sharded = DTensor.from_local(
        part, mesh, [Shard(dim)], run_check=False, shape=full.shape, stride=full.stride()
    )
    setattr(module, name, nn.Parameter(sharded, requires_grad=full.requires_grad))


def _chunk(x: Tensor, dim: int, n: int, index: int) -> Tensor:
    """torch.chunk's part `index` of `n`, empty where torch.chunk makes fewer than `n`."""
    size = -(-x.shape[dim] // n)
    start = min(size * index, x.shape[dim])
    return x.narrow(dim, start, min(size, x.shape[dim] - start))


# Forwards of linear layers. transformers' Conv1D is a linear layer with a transposed weight.


def column_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Split by output features: [.., in] to [.., out/tp]."""
    return linear(self, x, local(self.weight), local(self.bias))


def row_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Split by input features: [.., in/tp] to partial sums of [.., out], or to their sum."""
    return _close(self, linear(self, x, local(self.weight), _bias_share(self)))


def column_conv1d(self: nn.Module, x: Tensor) -> Tensor:
    """Split by output features, weight [in, out/tp]."""
    return linear(self, x, local(self.weight), local(self.bias), transposed=True)


def row_conv1d(self: nn.Module, x: Tensor) -> Tensor:
    """Split by input features, weight [in/tp, out]."""
    return _close(self, linear(self, x, local(self.weight), _bias_share(self), transposed=True))


def thirds_conv1d(self: nn.Module, x: Tensor) -> Tensor:
    """Split by output features within each third: weight [in, 3, out/3/tp], bias [3, out/3/tp]."""
    return linear(self, x, local(self.weight), local(self.bias).flatten(), transposed=True)


def shared_kv_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Whole on every rank, of which each uses the rows of its heads: [.., in] to [.., rows]."""
    weight = torch.cat([self.weight[rows] for rows in self.rows])
    bias = None if self.bias is None else torch.cat([self.bias[rows] for rows in self.rows])
    return F.linear(x, weight, bias)


def _bias_share(self: nn.Module) -> Tensor | None:
    """A row layer's bias is added once: as one of tp equal shares, which the sum makes whole."""
    if self.bias is None or self.region.size == 1:
        return local(self.bias)
    return share(local(self.bias), self.region.size)


def _close(self: nn.Module, partial: Tensor) -> Tensor:
    """Take the sum here, unless the block adds several branches first."""
    return self.region.leave(partial) if self.closes else partial


LINEAR_FORWARDS = (column_linear, row_linear, column_conv1d, row_conv1d, thirds_conv1d)


def apply_later(model: nn.Module) -> None:
    """Let the weight gradients of the linear layers be put off."""
    model.later = Later()
    for path, module in model.named_modules():
        if getattr(module.forward, "__func__", None) in LINEAR_FORWARDS:
            module.later, module.weight_name = model.later, f"{path}.weight"


# The two ends of the model, split by vocabulary.


def vocabulary_embedding(self: nn.Embedding, ids: Tensor) -> Tensor:
    """Token ids [batch, seq] to [batch, seq, hidden].

    A rank looks up the ids that it owns, writes zeros for the others, and the sum over ranks makes
    the result whole. It is whole on every rank also under sequence parallelism, since positions and
    masks are made from its length; the first block splits it.
    """
    table = local(self.weight)
    if self.region.size == 1:
        return F.embedding(ids, table)
    ids = ids - vocabulary_start(self.weight)
    owned = (ids >= 0) & (ids < table.shape[0])
    found = F.embedding(ids.masked_fill(~owned, 0), table)
    return self.region.leave(found * owned.unsqueeze(-1))


def vocabulary_head(self: nn.Linear, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
    """Logits [.., vocabulary], or with `labels` [tokens] for `hidden` [tokens, hidden] the summed
    loss; the logits of all tokens never stand in memory together for the loss."""
    weight, bias, region = local(self.weight), local(self.bias), self.region
    vocabulary = self.weight.shape[0]
    if labels is not None:
        start = vocabulary_start(self.weight)
        return token_loss(hidden, weight, bias, labels, start, vocabulary, region.group)
    logits = F.linear(hidden, weight, bias)
    if region.size == 1:
        return logits
    whole = torch.empty(*logits.shape[:-1], vocabulary, device="meta")
    placement = [Shard(logits.dim() - 1)]
    return DTensor.from_local(
        logits, region.mesh, placement, shape=whole.shape, stride=whole.stride()
    ).full_tensor()


def vocabulary_start(weight: Tensor) -> int:
    """The first token id that this rank owns. Shards are torch.chunk's: all alike but the last."""
    if not isinstance(weight, DTensor):
        return 0
    mesh = weight.device_mesh
    axis = mesh.mesh_dim_names.index("tp")
    rows = -(-weight.shape[0] // mesh.size(axis))
    return min(rows * mesh.get_local_rank(axis), weight.shape[0])
