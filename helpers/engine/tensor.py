"""Tensor parallelism: each layer's matrices over ranks, the layer's arithmetic local.

    x --enter--> [ column | column ] --act--> [ row | row ] --leave--> y
                 split by output              split by input, partial sums

A parameter becomes a DTensor on the tensor axis, so its global shape and name stay known; `forward`
takes the local part and does plain arithmetic. Communication happens only in `enter` and `leave`.

Source: Shoeybi et al. 2019, Megatron-LM, section 3.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from helpers.engine.collectives import copy_in, reduce_out, share
from helpers.engine.loss import token_loss


@dataclass(frozen=True)
class Region:
    """The stretch of a layer in which ranks hold different parts of the work."""

    mesh: DeviceMesh

    @property
    def group(self) -> torch.distributed.ProcessGroup:
        return self.mesh.get_group()

    @property
    def size(self) -> int:
        return self.mesh.size()

    def enter(self, x: Tensor) -> Tensor:
        """From what all ranks hold alike to what each works on a part of (f)."""
        return copy_in(x, self.group) if self.size > 1 else x

    def leave(self, partial: Tensor) -> Tensor:
        """From the ranks' partial sums to their sum (g)."""
        return reduce_out(partial, self.group) if self.size > 1 else partial


def local(parameter: Tensor | None) -> Tensor | None:
    """This rank's part of a parameter, sharded or not."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


class ColumnLinear(nn.Linear):
    """A linear layer split by output features: [.., in] to [.., out/tp]."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, local(self.weight), local(self.bias))


class RowLinear(nn.Linear):
    """A linear layer split by input features: [.., in/tp] to partial sums of [.., out].

    The bias is replicated and enters as one of tp equal shares, so the sum adds it once. Where
    `closes` is true the sum is taken here, else by the block that adds several branches.
    """

    region: Region
    closes: bool

    def forward(self, x: Tensor) -> Tensor:
        bias = local(self.bias)
        if bias is not None and self.region.size > 1:
            bias = share(bias, self.region.size)
        partial = F.linear(x, local(self.weight), bias)
        return self.region.leave(partial) if self.closes else partial


class VocabularyEmbedding(nn.Embedding):
    """An embedding table split by rows: token ids [batch, seq] to [batch, seq, hidden].

    A rank looks up the ids that it owns, writes zeros for the others, and the sum over ranks makes
    the result whole.
    """

    region: Region

    def forward(self, ids: Tensor) -> Tensor:
        table = local(self.weight)
        if self.region.size == 1:
            return F.embedding(ids, table)
        ids = ids - vocabulary_start(self.weight)
        owned = (ids >= 0) & (ids < table.shape[0])
        found = F.embedding(ids.masked_fill(~owned, 0), table)
        return self.region.leave(found * owned.unsqueeze(-1))


class VocabularyHead(nn.Linear):
    """The output layer split by vocabulary. With labels it gives the loss, without them logits."""

    region: Region

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits [.., vocabulary], or with `labels` [tokens] for `hidden` [tokens, hidden] the
        summed loss; the logits of all tokens never stand in memory together for the loss."""
        weight, bias = local(self.weight), local(self.bias)
        if labels is not None:
            start = vocabulary_start(self.weight)
            vocabulary = self.weight.shape[0]
            return token_loss(hidden, weight, bias, labels, start, vocabulary, self.region.group)
        logits = F.linear(hidden, weight, bias)
        if self.region.size == 1:
            return logits
        full = torch.empty(*logits.shape[:-1], self.weight.shape[0], device="meta")
        shards = DTensor.from_local(
            logits,
            self.region.mesh,
            [Shard(logits.dim() - 1)],
            shape=full.shape,
            stride=full.stride(),
        )
        return shards.full_tensor()


def vocabulary_start(weight: Tensor) -> int:
    """The first token id that this rank owns. Shards are torch.chunk's: all alike but the last."""
    if not isinstance(weight, DTensor):
        return 0
    mesh = weight.device_mesh
    axis = mesh.mesh_dim_names.index("tp")
    rows = -(-weight.shape[0] // mesh.size(axis))
    return min(rows * mesh.get_local_rank(axis), weight.shape[0])


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
