"""Which groups have a board, and how their ranks come to share one.

It is made at the group's first message: rank 0 makes an anonymous file (memfd) and says in the
group's store where it is; the others open it through /proc. It has no name that could be left
behind, and is gone with the last process that maps it, however that ends. Where a machine does not
allow this, or has not the memory, all ranks know, and gloo carries the group's messages.
"""

import mmap
import os
import secrets
from contextlib import ExitStack, suppress
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, distributed_c10d

from .shared_memory import Board, board_bytes

MOST_RANKS = 8
MARK_BYTES = 16  # random, at the end: is it the file that rank 0 made?

_boards: WeakKeyDictionary[ProcessGroup, Board | None] = WeakKeyDictionary()


def board_of(group: ProcessGroup) -> Board | None:
    """The group's board; None where gloo, or NCCL, carries its messages. Every rank must ask."""
    if group not in _boards:
        _boards[group] = _open(group) if _can_have(group) else None
    return _boards[group]


def without_board(group: ProcessGroup) -> None:
    """Let gloo carry the group's messages. Every rank must call it."""
    _boards[group] = None


def calls_on_board(group: ProcessGroup) -> int:
    """How many collectives of the group this rank has begun there."""
    board = _boards.get(group)
    return board.calls if board else 0


def memory_of_boards() -> list[Tensor]:
    """What this process has mapped for them."""
    return [board.slots for board in _boards.values() if board]


def _can_have(group: ProcessGroup) -> bool:
    return (
        hasattr(os, "memfd_create")
        and 1 < group.size() <= MOST_RANKS
        and dist.get_backend(group) == "gloo"
        and on_one_node(group)
    )


def on_one_node(group: ProcessGroup) -> bool:
    """torchrun says how many ranks each node has."""
    each = int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or dist.get_world_size()
    return len({rank // each for rank in dist.get_process_group_ranks(group)}) == 1


def _open(group: ProcessGroup) -> Board | None:
    """None, on all ranks alike, if one of them cannot."""
    store = PrefixStore("board", distributed_c10d._get_process_group_store(group))
    rank, ranks, memory = group.rank(), group.size(), None
    with ExitStack() as files:  # what is mapped outlives its file
        with suppress(OSError, ValueError):
            memory = _map(files, store, rank, board_bytes(ranks) + MARK_BYTES)
        store.set(f"pid{rank}", "" if memory is None else str(os.getpid()))
        pids = [store.get(f"pid{other}").decode() for other in range(ranks)]
    if not all(pids):
        return None
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    board = Board(rank, list(map(int, pids)), memory, timeout.total_seconds())
    if rank == 0:
        board.prepare()
        store.set("prepared", "yes")
    store.wait(["prepared"])
    return board


def _map(files: ExitStack, store: dist.Store, rank: int, size: int) -> mmap.mmap:
    """Raises OSError or ValueError where it cannot be had."""
    if rank == 0:
        mark, place = secrets.token_bytes(MARK_BYTES), ""
        try:
            file = os.memfd_create("messages")
            files.callback(os.close, file)
            os.posix_fallocate(file, 0, size)  # or fail now, and not where it is written to
            memory = mmap.mmap(file, size)
            memory[-MARK_BYTES:] = mark
            place = f"/proc/{os.getpid()}/fd/{file} {mark.hex()}"
        finally:
            store.set("place", place)
        return memory
    path, _, mark = store.get("place").decode().partition(" ")
    file = os.open(path, os.O_RDWR)
    files.callback(os.close, file)
    memory = mmap.mmap(file, size)
    if memory[-MARK_BYTES:].hex() != mark:  # as where processes are numbered otherwise
        raise ValueError(path)
    return memory
