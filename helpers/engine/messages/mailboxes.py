"""A mailbox: memory through which a rank sends its neighbour tensors, one after another.

    written by one rank    | piece | piece | piece | .. |    read by the other, then free again

A message lies in as many pieces as it needs, and they go round. The sender copies it in and goes
on; the receiver copies it out when it wants it. Where there is no room the sender does not wait, as
ranks could then wait for each other for ever: it says so in the box, and gloo carries the message.
"""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from .shared_files import open_shared
from .shared_memory import PLACE_BYTES, Semaphore, wait_for

PIECES, PIECE_BYTES = 16, 2**18
NOTES = 4096  # messages under way of which a box knows who carries them
HEAD_BYTES = mmap.PAGESIZE  # of its semaphores
BOX_BYTES = HEAD_BYTES + NOTES + PIECES * PIECE_BYTES

_opened: WeakKeyDictionary[ProcessGroup, "Mailboxes | None"] = WeakKeyDictionary()


def open_mailboxes(group: ProcessGroup) -> None:
    """Give each two neighbours of the group, first and last rank included, a box for what one of
    them sends the other, if the machine allows it. Every rank must call it."""
    pairs = neighbours(group.size())
    _opened[group] = open_shared(
        group,
        "mailboxes",
        BOX_BYTES * len(pairs),
        lambda pids, memory, wait_s: Mailboxes(group.rank(), pairs, pids, memory, wait_s),
    )


def mailbox(group: ProcessGroup, peer: int) -> "Mailbox | None":
    """The box between this rank of the group and its rank `peer`; None where they have none."""
    boxes = _opened.get(group)
    return boxes.by_peer.get(peer) if boxes else None


def neighbours(ranks: int) -> list[tuple[int, int]]:
    """Ranks beside each other, the lower first; the last is beside the first."""
    return sorted({tuple(sorted((rank, (rank + 1) % ranks))) for rank in range(ranks)})


class Mailboxes:
    """A rank's view of all boxes of a group."""

    def __init__(
        self,
        rank: int,
        pairs: Sequence[tuple[int, int]],
        pids: Sequence[int],
        memory: mmap.mmap,
        timeout_s: float,
    ) -> None:
        self.all = []
        self.by_peer: dict[int, Mailbox] = {}
        for index, pair in enumerate(pairs):
            peer = sum(pair) - rank
            box = Mailbox(memory, index * BOX_BYTES, peer, timeout_s)
            self.all.append(box)
            if rank in pair:
                box.pid = pids[peer]
                self.by_peer[peer] = box

    def prepare(self) -> None:
        for box in self.all:
            box.prepare()


class Mailbox:
    """One end of it: this rank only sends, or only receives.

    Args:
        memory: of which BOX_BYTES from `offset` are the box's.
        peer: the rank of the group at the other end.
        timeout_s: how long a receiver waits.
    """

    def __init__(self, memory: mmap.mmap, offset: int, peer: int, timeout_s: float) -> None:
        self.peer, self.pid, self.timeout_s = peer, 0, timeout_s
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))
        self.sent, self.notes, self.free = (
            Semaphore(begin + index * PLACE_BYTES) for index in range(3)
        )
        rest = torch.frombuffer(
            memory, dtype=torch.uint8, offset=offset + HEAD_BYTES, count=BOX_BYTES - HEAD_BYTES
        )
        self.is_here, self.pieces = rest[:NOTES], rest[NOTES:]
        self.count = self.at = 0  # messages, and the piece where the next one begins

    def prepare(self) -> None:
        """By one rank, before any other call."""
        self.sent.begin(0)
        self.notes.begin(NOTES)
        self.free.begin(PIECES)

    def has_room(self, x: Tensor) -> bool:
        """Does the box take `x`? Then it has to be `put`; else another carries it, of which the
        receiver hears at once."""
        wait_for(self.notes, self.peer, self.pid, self.timeout_s)
        room = self._take_room(_pieces(x))
        self.is_here[self.count % NOTES] = room
        self.count += 1
        if not room:
            self.sent.give()
        return room

    def put(self, x: Tensor) -> None:
        """Send `x`, contiguous, for which there was room."""
        for part, place in self._places(x):
            place.copy_(part)
        self.sent.give()

    def wait(self) -> bool:
        """For the next message to be sent. False where another carries it; `get` it else."""
        wait_for(self.sent, self.peer, self.pid, self.timeout_s)
        here = bool(self.is_here[self.count % NOTES])
        self.notes.give()
        self.count += 1
        return here

    def get(self, out: Tensor) -> None:
        """Copy the message that was waited for into `out`, contiguous and of its size."""
        for part, place in self._places(out):
            part.copy_(place)
        for _ in range(_pieces(out)):
            self.free.give()

    def _take_room(self, pieces: int) -> bool:
        for taken in range(pieces):
            if not self.free.take(0):
                for _ in range(taken):
                    self.free.give()
                return False
        return True

    def _places(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of `x` and where in the pieces each of them lies; the next message begins after."""
        flat, begin = x.view(-1).view(torch.uint8), self.at * PIECE_BYTES
        before_the_end = len(self.pieces) - begin
        self.at = (self.at + _pieces(x)) % PIECES
        for part, first in ((flat[:before_the_end], begin), (flat[before_the_end:], 0)):
            if len(part):
                yield part, self.pieces[first : first + len(part)]


def _pieces(x: Tensor) -> int:
    return -(-x.nbytes // PIECE_BYTES)
