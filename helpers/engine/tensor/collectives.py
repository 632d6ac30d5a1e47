"""Each collective beside its transpose.

A collective is a linear map over ranks, so its backward is its transpose:

    forward                    backward                   Megatron-LM's name
    copy_in    (identity)      all-reduce                 f
    reduce_out (all-reduce)    identity                   g
    gather     (all-gather)    reduce-scatter             g-bar, sequence parallel
    scatter    (reduce-scatter) all-gather                f-bar, sequence parallel
    split      (keep my part)  all-gather
    collect    (all-gather)    keep my part
    share      (divide by n)   identity
    once       (identity)      the first of the ranks that have the same part gets the sum, the
                               others zeros

`gather` feeds work that differs between ranks, so its gradients are summed on the way back;
`collect` feeds work that every rank repeats, so its gradient is already whole.

Sources: Shoeybi et al. 2019, Megatron-LM, section 3 (f and g); Korthikanti et al. 2022,
Reducing Activation Recomputation, section 4.2.2 (g-bar and f-bar).
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..messages import carriers
from ..messages.carriers import gather_single, scatter_single, sum_of
from .compiled_messages import in_one_graph, resized


@in_one_graph(lambda x, n: x.new_empty(x.shape))
def all_reduce(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of `x` over the group, in a new tensor of the same shape."""
    return sum_of(x, group)


@in_one_graph(lambda x, n: x.new_empty(x.shape))
def largest(x: Tensor, group: ProcessGroup) -> Tensor:
    """The largest of each number over the group, in a new tensor; it has no backward."""
    x = x.contiguous().clone()
    carriers.all_reduce(x, group, dist.ReduceOp.MAX)
    return x


@in_one_graph(lambda x, dim, n: x.new_empty(resized(x, dim, x.shape[dim] * n)))
def all_gather(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """The ranks' equal parts joined along `dim`: [.., s/n, ..] becomes [.., s, ..]."""
    parts = x.new_empty((group.size() * x.shape[0], *x.shape[1:]))
    gather_single(parts, x.contiguous(), group=group)
    return parts if dim == 0 else torch.cat(parts.chunk(group.size()), dim)


@in_one_graph(lambda x, dim, n: x.new_empty(resized(x, dim, x.shape[dim] // n)))
def reduce_scatter(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """The sum over the group, of which each rank keeps its equal part along `dim`."""
    parts = x.contiguous() if dim == 0 else torch.cat(x.chunk(group.size(), dim))
    piece = parts.new_empty((parts.shape[0] // group.size(), *parts.shape[1:]))
    scatter_single(piece, parts, group=group)
    return piece


def my_part(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """This rank's equal part of `x` along `dim`."""
    return x.chunk(group.size(), dim)[group.rank()].contiguous()


class _CopyIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return all_reduce(grad, ctx.group), None


class _ReduceOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _Along(torch.autograd.Function):
    """A collective along a dim, and on the way back its transpose."""

    @staticmethod
    def forward(ctx, x, collective, transpose, dim, group):
        ctx.transpose, ctx.dim, ctx.group = transpose, dim, group
        return collective(x, dim, group)

    @staticmethod
    def backward(ctx, grad):
        return ctx.transpose(grad, ctx.dim, ctx.group), None, None, None, None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        return x / n

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@dataclass(frozen=True)
class SharedPart:
    """The last columns of a tensor, which several ranks of a group have alike.

    columns: how many.
    place, places: which of how many such parts is this rank's.
    first: is it the first of the ranks that have it?
    """

    columns: int
    place: int
    places: int
    first: bool
    group: ProcessGroup


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, part):
        ctx.part = part
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        part = ctx.part
        own, shared = grad.split([grad.shape[-1] - part.columns, part.columns], -1)
        sums = shared.new_zeros(part.places, *shared.shape)
        sums[part.place] = shared
        sums = all_reduce(sums, part.group)
        shared = sums[part.place] if part.first else torch.zeros_like(shared)
        return torch.cat([own, shared], -1), None


def copy_in(x: Tensor, group: ProcessGroup) -> Tensor:
    """Megatron's f: hand a replicated `x` to ranks that each do a part of the work."""
    return _CopyIn.apply(x, group)


def reduce_out(x: Tensor, group: ProcessGroup) -> Tensor:
    """Megatron's g: sum the ranks' partial results into a replicated one."""
    return _ReduceOut.apply(x, group)


def gather(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Join sequence shards for ranks that each do a part of the work; transpose of `scatter`."""
    return _Along.apply(x, all_gather, reduce_scatter, dim, group)


def scatter(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Sum the ranks' partial results and keep this rank's shard; transpose of `gather`."""
    return _Along.apply(x, reduce_scatter, all_gather, dim, group)


def split(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Keep this rank's shard of a replicated `x`; transpose of `collect`."""
    return _Along.apply(x, my_part, all_gather, dim, group)


def collect(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Join shards into an `x` that every rank uses alike; transpose of `split`."""
    return _Along.apply(x, all_gather, my_part, dim, group)


def once(x: Tensor, part: SharedPart) -> Tensor:
    """Let what several ranks have alike get its gradient as one process would, whole and once: for
    whoever rounds it, since the rounded parts of a sum are not the rounded sum."""
    return _Once.apply(x, part)


def share(x: Tensor, n: int) -> Tensor:
    """A replicated `x` as one of `n` equal partial results, which a later sum makes whole again.

    The sum over ranks turns n gradients of 1/n each into one, so the backward is the identity.
    A row-parallel bias goes in this way: it is added once in all, by whoever sums the results.
    """
    return _Share.apply(x, n)
