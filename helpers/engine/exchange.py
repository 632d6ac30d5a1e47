"""Reduce-scatter: torch's own, and where the backend has none, sends and receives.

gloo makes a whole all-reduce of it: twice the bytes, of which a rank then keeps its piece. So over
gloo each rank sends every other the piece that that one keeps, and adds up what it is sent:

    rank 0 has a0 a1      it sends a1, keeps a0 and adds b0
    rank 1 has b0 b1      it sends b0, keeps b1 and adds a1
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.profiler import record_function

# torch 2.13 renamed it; the old name still works there but warns
_by_backend = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Exchange:
    """A reduce-scatter under way. Every rank of a group starts the same ones in the same order."""

    def __init__(self, mine: Tensor, parts: Tensor, group: ProcessGroup) -> None:
        n, rank = group.size(), group.rank()
        pieces = parts.view(n, *mine.shape)
        self.mine, self.kept = mine, pieces[rank]
        self.others = [torch.empty_like(mine) for _ in range(n - 2)]
        self.works = []
        for distance, into in enumerate([mine, *self.others], start=1):  # each to another at a time
            sender, receiver = (rank - distance) % n, (rank + distance) % n
            self.works += [
                dist.isend(pieces[receiver], group=group, group_dst=receiver),
                dist.irecv(into, group=group, group_src=sender),
            ]

    def wait(self) -> None:
        """Until `mine` holds the sum."""
        with record_function("gloo:reduce_scatter"):
            for work in self.works:
                work.wait()
        for piece in (self.kept, *self.others):
            self.mine.add_(piece)


def scatter_single(
    mine: Tensor, parts: Tensor, group: ProcessGroup, async_op: bool = False
) -> dist.Work | Exchange | None:
    """The sum of `parts` over the group, of which each rank gets its piece in `mine`.

    Args:
        mine: [k, ..], is overwritten.
        parts: [n * k, ..] for n ranks, contiguous.
        async_op: return at once what has to be waited for; until then `parts` must stay as it is.
    """
    if dist.get_backend(group) != "gloo" or group.size() == 1:
        return _by_backend(mine, parts, group=group, async_op=async_op)
    exchange = Exchange(mine, parts, group)
    if async_op:
        return exchange
    exchange.wait()
    return None


class Scatter:
    """What fully_shard calls in place of its own reduce-scatter (FSDPModule
    .set_custom_reduce_scatter)."""

    def allocate(self, size: tuple[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: dist.ReduceOp,  # a sum: set_force_sum_reduction_for_comms
        async_op: bool = False,
    ) -> dist.Work | Exchange | None:
        return scatter_single(output_tensor, input_tensor, group, async_op)
