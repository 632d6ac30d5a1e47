"""Memory that the ranks of a group on one machine share, and how they come by it.

Rank 0 makes an anonymous file (memfd) and says in the group's store where it is; the others open it
through /proc. It has no name that could be left behind, and is gone with the last process that maps
it, however that ends. Where a machine does not allow this, or has not the memory, all ranks know,
and gloo carries the group's messages.
"""

import mmap
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, distributed_c10d

MOST_RANKS = 8
MARK_BYTES = 16  # random, at the end: is it the file that rank 0 made?


class Shared(Protocol):
    """One rank's view of such memory; `prepare` is called on one rank before any other use."""

    def prepare(self) -> None: ...


S = TypeVar("S", bound=Shared)


def open_shared(
    group: ProcessGroup,
    purpose: str,
    size: int,
    make: Callable[[list[int], mmap.mmap, float], S],
) -> S | None:
    """What `make` makes of the ranks' processes, `size` bytes that all of them map, and the seconds
    that they wait for each other; None, on all ranks alike, where that cannot be. Every rank of the
    group must ask.

    Args:
        purpose: another for each memory of a group.
    """
    if not _can_have(group):
        return None
    store = PrefixStore(purpose, distributed_c10d._get_process_group_store(group))
    rank, ranks, memory = group.rank(), group.size(), None
    with ExitStack() as files:  # what is mapped outlives its file
        with suppress(OSError, ValueError):
            memory = _map(files, store, rank, size + MARK_BYTES)
        store.set(f"pid{rank}", "" if memory is None else str(os.getpid()))
        pids = [store.get(f"pid{other}").decode() for other in range(ranks)]
    if not all(pids):
        return None
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    shared = make(list(map(int, pids)), memory, timeout.total_seconds())
    if rank == 0:
        shared.prepare()
        store.set("prepared", "yes")
    store.wait(["prepared"])
    return shared


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
