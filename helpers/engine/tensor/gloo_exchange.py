"""All-gather and reduce-scatter: torch's own, and over gloo sends and receives.

gloo makes a whole all-reduce of a reduce-scatter, twice the bytes, of which a rank then keeps its
piece; and it gathers into a buffer of its own, from which it copies. So over gloo each rank sends
every other the piece that that one is to have, from where it lies to where it belongs:

                         all-gather                     reduce-scatter of a0 a1 and b0 b1
    rank 0               has a, sends it, receives b    sends a1, keeps a0 and adds b0
    rank 1               has b, sends it, receives a    sends b0, keeps b1 and adds a1
"""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.profiler import record_function

# torch 2.13 renamed them; the old names still work there but warn
_gather_by_backend = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_by_backend = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

TAGS = {"all_gather": 1, "reduce_scatter": 2}  # by which whoever counts messages tells them apart


class Exchange(dist.Work):
    """A piece for every other rank of a group and one from each, under way. Every rank of a group
    starts the same ones in the same order.

    Args:
        kind: of TAGS.
        send, receive: by rank of the group, the piece for it, and where the piece from it goes.
        terms: what to add to `total` when all is there.
    """

    def __init__(
        self,
        kind: str,
        send: Sequence[Tensor],
        receive: Sequence[Tensor],
        group: ProcessGroup,
        total: Tensor | None = None,
        terms: Sequence[Tensor] = (),
    ) -> None:
        super().__init__()
        self.kind, self.group, self.total, self.terms = kind, group, total, terms
        self.works = []
        n, rank, tag = group.size(), group.rank(), TAGS[kind]
        for distance in range(1, n):  # each to another at a time
            to, source = (rank + distance) % n, (rank - distance) % n
            self.works += [
                dist.isend(send[to], group=group, group_dst=to, tag=tag),
                dist.irecv(receive[source], group=group, group_src=source, tag=tag),
            ]

    def wait(self) -> bool:
        """Until the result is there."""
        with record_function(f"gloo:{self.kind}"):
            for work in self.works:
                work.wait()
        for piece in self.terms:
            self.total.add_(piece)
        self.works, self.terms = [], ()
        return True


def gather_single(
    whole: Tensor, piece: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """The ranks' pieces, in the order of their ranks.

    Args:
        whole: [n * k, ..] for n ranks, contiguous; is overwritten.
        piece: [k, ..], contiguous; may be this rank's place in `whole`.
        async_op: return at once what has to be waited for.
    """
    group = group or dist.group.WORLD
    # a ring sends a piece over the link between two nodes once, not to each rank behind it
    if not _gloo(group) or not _on_one_node(group):
        return _gather_by_backend(whole, piece, group=group, async_op=async_op)
    pieces = whole.view(group.size(), *piece.shape)
    place = pieces[group.rank()]
    if place.data_ptr() != piece.data_ptr():
        place.copy_(piece)
    return _waited(Exchange("all_gather", [place] * group.size(), pieces, group), async_op)


def scatter_single(
    piece: Tensor, parts: Tensor, group: ProcessGroup | None = None, async_op: bool = False
) -> dist.Work | None:
    """The sum of `parts` over the group, of which each rank gets its piece in `piece`.

    Args:
        piece: [k, ..], is overwritten.
        parts: [n * k, ..] for n ranks, contiguous.
        async_op: return at once what has to be waited for; until then `parts` must stay as it is.
    """
    group = group or dist.group.WORLD
    if not _gloo(group):
        return _scatter_by_backend(piece, parts, group=group, async_op=async_op)
    n, rank = group.size(), group.rank()
    pieces = parts.view(n, *piece.shape)
    others = [torch.empty_like(piece) for _ in range(n - 2)]
    received = [piece, *others]
    received.insert(rank, piece)  # nothing is sent to oneself
    terms = (pieces[rank], *others)
    return _waited(Exchange("reduce_scatter", pieces, received, group, piece, terms), async_op)


def _gloo(group: ProcessGroup) -> bool:
    return dist.get_backend(group) == "gloo" and group.size() > 1


def _on_one_node(group: ProcessGroup) -> bool:
    """torchrun says how many ranks each node has."""
    each = int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or dist.get_world_size()
    return len({rank // each for rank in dist.get_process_group_ranks(group)}) == 1


def _waited(exchange: Exchange, async_op: bool) -> Exchange | None:
    if async_op:
        return exchange
    exchange.wait()
    return None


class _Buffers:
    def allocate(self, size: tuple[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class Gather(_Buffers):
    """What fully_shard calls in place of its own all-gather (FSDPModule.set_custom_all_gather)."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        return gather_single(output_tensor, input_tensor, group, async_op)


class Scatter(_Buffers):
    """And in place of its reduce-scatter (FSDPModule.set_custom_reduce_scatter)."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: dist.ReduceOp,  # a sum: set_force_sum_reduction_for_comms
        async_op: bool = False,
    ) -> dist.Work | None:
        return scatter_single(output_tensor, input_tensor, group, async_op)
