"""Sums, gathers and reduce-scatters over a group, and sends, by whoever carries them best.

NCCL             between GPUs
a board          between the processes of a machine without GPUs: shared_memory.py
a mailbox        the same, for what one of a pipeline's ranks sends the next: mailboxes.py
gloo's exchange  the same where there is no board, and a reduce-scatter between nodes
gloo             between nodes
"""

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.profiler import record_function

from .boards import board_of
from .gloo_exchange import Exchange, gather_by_pieces, scatter_by_pieces
from .mailboxes import Mailbox, mailbox
from .shared_files import on_one_node
from .shared_memory import Board

# torch 2.13 renamed them; the old names still work there but warn
_gather_by_backend = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter_by_backend = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

COMBINE = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum}
BOARD = "shared_memory:"  # ranges of what a board carries, whose argument says what that is


def all_reduce(
    x: Tensor,
    group: ProcessGroup | None = None,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    async_op: bool = False,
) -> dist.Work | None:
    """The sum or largest over the ranks, in place of each one's `x`, contiguous."""
    group = group or dist.group.WORLD
    board = _board(x, group) if op in COMBINE else None
    if board is None:
        return dist.all_reduce(x, op, group=group, async_op=async_op)
    with _carried("all_reduce", group, x):
        board.all_reduce(x, x, COMBINE[op])
    return Done() if async_op else None


def sum_of(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the ranks, in a new tensor."""
    x = x.contiguous()
    board = _board(x, group)
    if board is None:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total
    total = torch.empty_like(x)
    with _carried("all_reduce", group, x):
        board.all_reduce(total, x)
    return total


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
    board = _board(whole, group)
    if board is not None:
        with _carried("all_gather", group, whole):
            board.all_gather(whole, piece)
        return Done() if async_op else None
    # a ring sends a piece over the link between two nodes once, not to each rank behind it
    if not _gloo(group) or not on_one_node(group):
        return _gather_by_backend(whole, piece, group=group, async_op=async_op)
    return _waited(gather_by_pieces(whole, piece, group), async_op)


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
    board = _board(parts, group)
    if board is not None:
        with _carried("reduce_scatter", group, parts):
            board.reduce_scatter(piece, parts)
        return Done() if async_op else None
    if not _gloo(group):
        return _scatter_by_backend(piece, parts, group=group, async_op=async_op)
    return _waited(scatter_by_pieces(piece, parts, group), async_op)


def exchange(out: Tensor, x: Tensor, group: ProcessGroup | None = None) -> None:
    """All-to-all: part i of `x` goes to rank i, and stands in its `out` at this rank's place. Both
    are [n, ..] for n ranks, contiguous."""
    group = group or dist.group.WORLD
    board = _board(x, group)
    if board is None:
        dist.all_to_all_single(out, x, group=group)
        return
    with _carried("all_to_all", group, x):
        board.all_to_all(out, x)


class Shift:
    """A tensor on its way to the next rank of a group, and the one before's on its way here."""

    def __init__(self, x: Tensor, group: ProcessGroup) -> None:
        self.sent, self.received, self.works = x.contiguous(), torch.empty_like(x), []
        board = _board(x, group)
        if board is not None:
            with _carried("shift", group, x):
                board.shift(self.received, self.sent)
            return
        n, rank = group.size(), group.rank()
        to, source = (rank + 1) % n, (rank - 1) % n
        if dist.get_backend(group) == "nccl":  # as one: else it waits for one's peer, then the next
            both = (dist.isend, self.sent, to), (dist.irecv, self.received, source)
            self.works = dist.batch_isend_irecv(
                [dist.P2POp(way, x, group=group, group_peer=peer) for way, x, peer in both]
            )
            return
        self.works = [
            dist.isend(self.sent, group=group, group_dst=to),
            dist.irecv(self.received, group=group, group_src=source),
        ]

    def wait(self) -> Tensor:
        """What came."""
        for work in self.works:
            work.wait()
        self.works = []
        return self.received


def send(x: Tensor, group: ProcessGroup, to: int, tag: int = 0) -> dist.Work:
    """`x`, contiguous, on its way to rank `to` of the group; until it has left it must stay as it
    is."""
    box = mailbox(group, to) if x.device.type == "cpu" else None
    if box is None or not box.has_room(x):
        return dist.isend(x, group=group, group_dst=to, tag=tag)
    with _carried("send", group, x):
        box.put(x)
    return Done()


def receive(x: Tensor, group: ProcessGroup, source: int, tag: int = 0) -> dist.Work:
    """What rank `source` of the group sent first of what was not received, on its way into `x`,
    contiguous."""
    box = mailbox(group, source) if x.device.type == "cpu" else None
    if box is None:
        return dist.irecv(x, group=group, group_src=source, tag=tag)
    return Letter(box, x, group, tag)


class Letter(dist.Work):
    """A message that is taken out of a mailbox when it is waited for; of one group and sender they
    are waited for in the order in which they were sent."""

    def __init__(self, box: Mailbox, x: Tensor, group: ProcessGroup, tag: int) -> None:
        super().__init__()
        self.box, self.x, self.group, self.tag = box, x, group, tag

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self.box.wait():
            dist.recv(self.x, group=self.group, group_src=self.box.peer, tag=self.tag)
            return True
        with _carried("receive", self.group, self.x):
            self.box.get(self.x)
        return True


class Done(dist.Work):
    """A message that has arrived already: on a board a rank carries it itself, at once."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _board(x: Tensor, group: ProcessGroup) -> Board | None:
    return board_of(group) if x.device.type == "cpu" and x.numel() else None


def _carried(kind: str, group: ProcessGroup, whole: Tensor) -> AbstractContextManager:
    """A range that tells a profiler, and whoever counts messages, as torch's own operations do. It
    takes half as long as a small message, so it is opened for those alone."""
    if not torch.autograd._profiler_enabled() and not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    return record_function(f"{BOARD}{kind}", f"{group.group_name} {group.size()} {whole.nbytes}")


def _gloo(group: ProcessGroup) -> bool:
    return dist.get_backend(group) == "gloo" and group.size() > 1


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
