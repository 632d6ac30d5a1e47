"""All-gather and reduce-scatter over gloo, of sends and receives.

gloo makes a whole all-reduce of a reduce-scatter, twice the bytes, of which a rank then keeps its
piece; and it gathers into a buffer of its own, from which it copies. So over gloo each rank sends
every other the piece that that one is to have, from where it lies to where it belongs:

                         all-gather                     reduce-scatter of a0 a1 and b0 b1
    rank 0               has a, sends it, receives b    sends a1, keeps a0 and adds b0
    rank 1               has b, sends it, receives a    sends b0, keeps b1 and adds a1
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.profiler import record_function

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


def gather_by_pieces(whole: Tensor, piece: Tensor, group: ProcessGroup) -> Exchange:
    """Arguments as of carriers.gather_single."""
    pieces = whole.view(group.size(), *piece.shape)
    place = pieces[group.rank()]
    if place.data_ptr() != piece.data_ptr():
        place.copy_(piece)
    return Exchange("all_gather", [place] * group.size(), pieces, group)


def scatter_by_pieces(piece: Tensor, parts: Tensor, group: ProcessGroup) -> Exchange:
    """Arguments as of carriers.scatter_single; until its end `parts` must stay as it is."""
    n, rank = group.size(), group.rank()
    pieces = parts.view(n, *piece.shape)
    others = [torch.empty_like(piece) for _ in range(n - 2)]
    received = [piece, *others]
    received.insert(rank, piece)  # nothing is sent to oneself
    return Exchange("reduce_scatter", pieces, received, group, piece, (pieces[rank], *others))
