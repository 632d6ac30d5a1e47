"""A board: memory that the ranks of a group on one machine share, where each pins up what it sends.

    rank 0's slots   [ piece | piece ]     written by rank 0, read by all others
    rank 1's slots   [ piece | piece ]

A rank copies a piece into one of its slots and tells the others. They take it from where it lies
and say so; when all have, the slot is free again. gloo sends the same bytes through the machine's
loopback device, which copies them more often and wakes a thread at each end. A board is to gloo
what the message libraries of the clouds are to NCCL.

A sum is taken in the order of the ranks: it is the same on all of them to the last bit, every time.
"""

import ctypes
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

SLOTS = 2  # one is read while the next is written
SLOT_BYTES = 2 * 2**20
TOGETHER_BYTES = 2**18  # up to here every rank adds all, and waits once; above each adds its part
PLACE_BYTES = 64  # of a semaphore: a cache line, for which no two ranks then fight
LOOK_S = 1.0  # from one look whether those that are waited for still live to the next

Combine = Callable[..., Tensor]  # torch.add, torch.maximum


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Semaphore:
    """POSIX's, in shared memory: the kernel is asked only where a rank has to wait."""

    libc = ctypes.CDLL(None)

    def __init__(self, address: int) -> None:
        self.at = ctypes.c_void_p(address)

    def begin(self, value: int) -> None:
        self.libc.sem_init(self.at, 1, value)

    def give(self) -> None:
        self.libc.sem_post(self.at)

    def take(self, seconds: float) -> bool:
        """False where there was none to take for so long, or a signal came."""
        if self.libc.sem_trywait(self.at) == 0:
            return True
        if not seconds:
            return False
        until = time.time() + seconds
        moment = Timespec(int(until), int(until % 1 * 1e9))
        return self.libc.sem_timedwait(self.at, ctypes.byref(moment)) == 0


class Board:
    """One rank's view of it. Every rank of the group calls the same methods in the same order.

    Args:
        pids: the processes of all ranks.
        memory: of `board_bytes`, mapped by all of them.
        timeout_s: how long a rank waits for another.

    Attributes:
        calls: collectives that this rank has begun.
    """

    def __init__(self, rank: int, pids: Sequence[int], memory: mmap.mmap, timeout_s: float) -> None:
        self.rank, self.pids, self.timeout_s = rank, pids, timeout_s
        self.size, self.calls, self.turn = len(pids), 0, 0
        self.others = [other for other in range(self.size) if other != rank]
        head = _head_bytes(self.size)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        places = iter(range(begin, begin + head, PLACE_BYTES))
        # written[a][b]: pieces of a that b has not seen; free[a][b]: slots of a that b is done with
        self.written, self.free = (
            [[Semaphore(next(places)) for _ in pids] for _ in pids] for _ in range(2)
        )
        count = SLOTS * self.size * SLOT_BYTES
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=head, count=count)
        self.slots = slots.view(SLOTS, self.size, SLOT_BYTES)

    def prepare(self) -> None:
        """By one of the ranks, before any other call."""
        for writer in range(self.size):
            for reader in range(self.size):
                self.written[writer][reader].begin(0)
                self.free[writer][reader].begin(SLOTS)

    def all_reduce(self, out: Tensor, x: Tensor, combine: Combine = torch.add) -> None:
        """Combine the ranks' `x` into each one's `out`, which may be `x`; both contiguous."""
        self.calls += 1
        together = self.size == 2 or x.nbytes <= TOGETHER_BYTES
        for at, own in _split(x.view(-1), _elements(x)):
            piece = out.view(-1)[at : at + len(own)]
            self._own_slot(x)[: len(own)].copy_(own)
            if together:
                _combine([slot[: len(own)] for slot in self._show(x)], combine, out=piece)
                self._done()
                continue
            parts = piece.split(-(-len(piece) // self.size))
            begins = [len(parts[0]) * rank for rank in range(self.size)]
            own = parts[self.rank] if self.rank < len(parts) else piece[:0]
            terms = [slot[begins[self.rank] :][: len(own)] for slot in self._show(x)]
            _combine(terms, combine, out=own)
            self._done()
            self._own_slot(x)[: len(own)].copy_(own)
            for part, slot in zip(parts, self._show(x)):
                part.copy_(slot[: len(part)])
            self._done()

    def all_gather(self, whole: Tensor, piece: Tensor) -> None:
        """The ranks' pieces in the order of their ranks. piece: [k, ..], whole: [n * k, ..], both
        contiguous; the piece may lie at its place in the whole."""
        self.calls += 1
        rows = whole.view(self.size, -1)
        for at, own in _split(piece.view(-1), _elements(piece)):
            self._own_slot(piece)[: len(own)].copy_(own)
            for row, slot in zip(rows, self._show(piece)):
                row[at : at + len(own)].copy_(slot[: len(own)])
            self._done()

    def reduce_scatter(self, piece: Tensor, parts: Tensor) -> None:
        """The sum of `parts`, [n * k, ..], of which each rank gets its piece, [k, ..]; both
        contiguous."""
        self.calls += 1
        rows = parts.view(self.size, -1)
        for at, out in _split(piece.view(-1), _elements(piece) // self.size):
            places = self._places(self._own_slot(piece))
            here = slice(at, at + len(out))
            for other in self.others:
                places[other][: len(out)].copy_(rows[other, here])
            shown = self._show(piece)
            slots = [self._places(slot)[self.rank][: len(out)] for slot in shown]
            slots[self.rank] = rows[self.rank, here]
            _combine(slots, torch.add, out=out)
            self._done()

    def all_to_all(self, out: Tensor, x: Tensor) -> None:
        """Part i of `x` to rank i, which puts it at this rank's place. [n, ..] each, contiguous."""
        self.calls += 1
        rows, places = x.view(self.size, -1), out.view(self.size, -1)
        places[self.rank].copy_(rows[self.rank])
        for at, part in _split(rows[0], _elements(x) // self.size):
            here = slice(at, at + len(part))
            slot = self._places(self._own_slot(x))
            for other in self.others:
                slot[other][: len(part)].copy_(rows[other, here])
            shown = self._show(x)
            for other in self.others:
                theirs = self._places(shown[other])[self.rank]
                places[other, here].copy_(theirs[: len(part)])
            self._done()

    def shift(self, out: Tensor, x: Tensor) -> None:
        """The rank before's `x` into `out`; both contiguous."""
        self.calls += 1
        before = (self.rank - 1) % self.size
        for at, piece in _split(x.view(-1), _elements(x)):
            self._own_slot(x)[: len(piece)].copy_(piece)
            out.view(-1)[at : at + len(piece)].copy_(self._show(x)[before][: len(piece)])
            self._done()

    def _places(self, slot: Tensor) -> Tensor:
        """A place in the slot for each rank: [ranks, elements], without what is left over."""
        each = len(slot) // self.size
        return slot[: each * self.size].view(self.size, each)

    def _own_slot(self, like: Tensor) -> Tensor:
        """Where to write next, once all have read what was there: [elements]."""
        for other in self.others:
            self._wait(self.free[self.rank][other], other)
        return self._all_slots(like)[self.rank]

    def _show(self, like: Tensor) -> list[Tensor]:
        """Tell the others that the slot is written; all ranks' slots, once they are."""
        for other in self.others:
            self.written[self.rank][other].give()
        for other in self.others:
            self._wait(self.written[other][self.rank], other)
        return self._all_slots(like)

    def _done(self) -> None:
        """With reading what the others have shown."""
        for other in self.others:
            self.free[other][self.rank].give()
        self.turn += 1

    def _all_slots(self, like: Tensor) -> list[Tensor]:
        return list(self.slots[self.turn % SLOTS].view(like.dtype)[:, : _elements(like)])

    def _wait(self, semaphore: Semaphore, other: int) -> None:
        wait_for(semaphore, other, self.pids[other], self.timeout_s)


def wait_for(semaphore: Semaphore, other: int, pid: int, timeout_s: float) -> None:
    """Take it, once rank `other` of the group, whose process is `pid`, has given it.

    Raises:
        RuntimeError: that process has ended, or it takes too long.
    """
    until = time.monotonic() + timeout_s
    while not semaphore.take(LOOK_S):
        if not _lives(pid):
            raise RuntimeError(f"rank {other} of the group has ended")
        if time.monotonic() > until:
            raise RuntimeError(f"timed out after {timeout_s:g} s")


def _combine(terms: list[Tensor], combine: Combine, out: Tensor) -> None:
    combine(terms[0], terms[1], out=out)
    for term in terms[2:]:
        combine(out, term, out=out)


def _split(flat: Tensor, elements: int) -> Iterator[tuple[int, Tensor]]:
    """Pieces of so many elements, and where each begins."""
    for at in range(0, len(flat), elements):
        yield at, flat[at : at + elements]


def _elements(like: Tensor) -> int:
    return SLOT_BYTES // like.element_size()


def _lives(pid: int) -> bool:
    """A process that has ended and that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _head_bytes(ranks: int) -> int:
    """Of the semaphores, in whole pages."""
    return -(-2 * ranks**2 * PLACE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


def board_bytes(ranks: int) -> int:
    return _head_bytes(ranks) + ranks * SLOTS * SLOT_BYTES
