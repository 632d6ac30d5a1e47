"""Tensor parallelism: each layer's matrices over ranks, the layer's arithmetic local.

    x --enter--> [ column | column ] --act--> [ row | row ] --leave--> y
                 split by output              split by input, partial sums

The forwards here take this rank's part of each parameter (shards.py) and do plain arithmetic;
boundary.py says what entering and leaving are.

Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from ..models.chunked_loss import token_loss
from ..pipeline.split_backward import Later, linear
from .boundary import Boundary
from .collectives import copy_in, gather, reduce_out, share
from .shards import local, shard_parameter


def bind(module: nn.Module, forward: Any, boundary: Boundary, **dims: int) -> None:
    """Give a module a forward of ours; `dims` says along which dim each parameter is split."""
    module.boundary = boundary
    module.forward = MethodType(forward, module)
    for name, dim in dims.items():
        if boundary.size > 1 and getattr(module, name, None) is not None:
            shard_parameter(module, name, boundary.mesh, dim)


# Forwards of linear layers, and of transformers' Conv1D, whose weight is transposed.


def column_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Split by output features: [.., in] to [.., out/tp]."""
    return linear(self, x, local(self.weight), local(self.bias))


def row_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Split by input features: [.., in/tp] to partial sums of [.., out], or to their sum."""
    return _reduced(self, linear(self, x, local(self.weight), _bias_share(self)))


def shared_kv_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Whole on every rank, of which each uses the rows of its heads: [.., in] to [.., rows]. Each
    run of rows has a product of its own, for a copy of all would wait for the backward; in 8 bits
    the copy is what waits, and one is rounded sooner than two."""
    if getattr(self, "float8", None) is not None:
        return linear(self, x, _own_rows(self, self.weight), _own_rows(self, self.bias))
    biases = [None] * len(self.rows) if self.bias is None else [self.bias[r] for r in self.rows]
    return torch.cat(
        [linear(self, x, self.weight[r], bias) for r, bias in zip(self.rows, biases, strict=True)],
        -1,
    )


def gathered_linear(self: nn.Linear, x: Tensor) -> Tensor:
    """Rows over the ranks, made whole for use, of which each uses those of its heads."""
    weight, bias = (
        None if one is None else gather(local(one), 0, self.boundary.group)
        for one in (self.weight, self.bias)
    )
    return linear(self, x, _own_rows(self, weight), _own_rows(self, bias))


def _own_rows(self: nn.Module, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else torch.cat([parameter[rows] for rows in self.rows])


def split_norm(self: nn.Module, x: Tensor) -> Tensor:
    """An RMS norm of a width that the ranks share, [.., width/tp]: of the squares of a token, whose
    mean is over all of it, one number goes from rank to rank."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    group, ranks = self.boundary.group, self.boundary.size
    mean = wide.square().mean(-1, keepdim=True) / ranks
    mean = copy_in(reduce_out(mean, group), group)  # of use to every rank's part, and so its slope
    eps = getattr(self, "variance_epsilon", None) or self.eps
    weight = _own_rows(self, self.weight) if hasattr(self, "rows") else local(self.weight)
    return weight * (wide * (mean + eps).rsqrt()).to(x.dtype)


def _bias_share(self: nn.Module) -> Tensor | None:
    """A row layer's bias is added once: as one of tp equal shares, which the sum makes whole."""
    if self.bias is None or self.boundary.size == 1:
        return local(self.bias)
    return share(local(self.bias), self.boundary.size)


def _reduced(self: nn.Module, partial: Tensor) -> Tensor:
    """Take the sum here, unless the block adds several branches first."""
    return self.boundary.leave(partial) if self.reduces_output else partial


# kind of layer -> its forward, and the dim along which each of its parameters is split: of a packed
# one within each of n parts, weight [n, out/n, in] and bias [n, out/n]
FORWARDS = {"column": column_linear, "packed": column_linear, "row": row_linear}
LINEAR: dict[str, dict[str, int]] = {
    "column": {"weight": 0, "bias": 0},
    "packed": {"weight": 1, "bias": 1},
    "row": {"weight": 1},
}
CONV1D: dict[str, dict[str, int]] = {
    "column": {"weight": 1, "bias": 0},
    "packed": {"weight": 2, "bias": 1},
    "row": {"weight": 0},
}


def postpone_weight_gradients(model: nn.Module) -> None:
    """Let the weight gradients of the linear layers be put off: see pipeline/split_backward.py."""
    model.later = Later()
    for path, module in model.named_modules():
        if getattr(module.forward, "__func__", None) in FORWARDS.values():
            module.later, module.weight_name = model.later, f"{path}.weight"


# The two ends of the model, split by vocabulary.


def vocabulary_embedding(self: nn.Embedding, ids: Tensor) -> Tensor:
    """Token ids [batch, seq] to [batch, seq, hidden].

    A rank looks up the ids that it owns, writes zeros for the others, and the sum over ranks makes
    the result whole. It is whole on every rank also under sequence parallelism, since positions and
    masks are made from its length; the first block splits it.
    """
    table = local(self.weight)
    start = vocabulary_start(self.weight)
    ids = ids - start
    owned = (ids >= 0) & (ids < table.shape[0])
    padding = None if self.padding_idx is None else self.padding_idx - start
    padding = padding if padding is not None and 0 <= padding < table.shape[0] else None
    vectors = F.embedding(ids.masked_fill(~owned, 0), table, padding)
    whole = self.boundary.leave(vectors * owned.unsqueeze(-1))
    scale = getattr(self, "embed_scale", None)  # of Gemma's class
    return whole if scale is None else whole * scale


def vocabulary_head(self: nn.Linear, hidden: Tensor) -> Tensor:
    """Logits [.., vocabulary], or where the module's `targets` [tokens] are set for `hidden`
    [tokens, hidden] the summed loss; the logits of all tokens never stand in memory together for
    the loss."""
    weight, bias, boundary = local(self.weight), local(self.bias), self.boundary
    vocabulary, labels = self.weight.shape[0], self.targets
    hidden = hidden.to(weight.dtype)  # Mamba's are in float32, whatever its weights are in
    if labels is not None:
        start = vocabulary_start(self.weight)
        return token_loss(
            hidden,
            weight,
            bias,
            labels,
            start,
            vocabulary,
            boundary.group,
            self.transform,
            self.late,
        )
    logits = F.linear(hidden, weight, bias)
    if boundary.size == 1:
        return logits
    whole = torch.empty(*logits.shape[:-1], vocabulary, device="meta")
    placement = [Shard(logits.dim() - 1)]
    return DTensor.from_local(
        logits, boundary.mesh, placement, shape=whole.shape, stride=whole.stride()
    ).full_tensor()


def vocabulary_start(weight: Tensor) -> int:
    """The first token id that this rank owns. Shards are torch.chunk's: all alike but the last."""
    if not isinstance(weight, DTensor):
        return 0
    mesh = weight.device_mesh
    axis = mesh.mesh_dim_names.index("tp")
    rows = -(-weight.shape[0] // mesh.size(axis))
    return min(rows * mesh.get_local_rank(axis), weight.shape[0])
