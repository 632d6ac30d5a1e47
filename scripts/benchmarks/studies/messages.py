"""What a message costs between the processes of this machine: gloo, a board, and a plain copy.

All three take turns, message by message. The copy of the same bytes inside one process is the
limit: a rank has to read what it sends and to write what it gets.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from helpers.commands import markdown
from helpers.engine.messages import carriers
from helpers.engine.messages.boards import board_of, without_board
from helpers.engine.messages.mailboxes import open_mailboxes
from helpers.lab.calls.on_ranks import on_ranks
from helpers.planner.measure.rank_measurements import there_and_back

SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26)  # bytes of the whole tensor
RANKS = (2, 4, 8)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send")
TURNS, TURN_BYTES = (5, 40), 2**28  # as many turns as move so many bytes, within bounds
WARMUP = 2


@dataclass(frozen=True)
class Row:
    """Median seconds of the slowest rank; of a send to the next rank, half of there and back."""

    ranks: int
    kind: str
    size_bytes: int
    gloo_s: float
    board_s: float
    copy_s: float


def measure(say: Callable[[str], None]) -> list[Row]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not find this file
    rows = []
    for ranks in RANKS:
        say(f"{ranks} ranks")
        found = on_ranks(_on_rank, nproc=ranks, timeout_s=600)
        for (kind, size), of_ranks in zip(_cases(), zip(*found)):
            slowest = (max(seconds) for seconds in zip(*of_ranks))
            rows.append(Row(ranks, kind, size, *slowest))
    return rows


def _cases() -> list[tuple[str, int]]:
    return [(kind, size) for kind in KINDS for size in SIZES]


def _on_rank() -> list[tuple[float, float, float]]:
    """By case, this rank's medians: over gloo, on a board, of a copy."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    board, gloo = [dist.new_group() for _ in range(2)], [dist.new_group() for _ in range(2)]
    if board_of(board[0]) is None:
        raise RuntimeError("this machine has no shared memory for a board")
    for way in range(2):
        open_mailboxes(board[way])
        without_board(gloo[way])
    return [_medians(kind, size, gloo, board) for kind, size in _cases()]


Ways = list[dist.ProcessGroup]  # there, and back


def _medians(kind: str, size: int, *groups: Ways) -> tuple[float, ...]:
    n = dist.get_world_size()
    whole = torch.zeros(size // 4)
    piece, other = whole[: len(whole) // n].clone(), torch.empty_like(whole)
    calls: dict[str, Callable[[Ways], Any]] = {
        "all_reduce": lambda ways: carriers.all_reduce(whole, ways[0]),
        "all_gather": lambda ways: carriers.gather_single(whole, piece, ways[0]),
        "reduce_scatter": lambda ways: carriers.scatter_single(piece, whole, ways[0]),
        "send": lambda ways: there_and_back(whole, ways),
    }
    ways = [lambda group=group: calls[kind](group) for group in groups]
    ways.append(lambda: other.copy_(whole))
    seconds: list[list[float]] = [[] for _ in ways]
    for turn in range(WARMUP + min(max(TURNS[0], TURN_BYTES // size), TURNS[1])):
        for way, taken in zip(ways, seconds):
            dist.barrier()
            began = time.perf_counter()
            way()
            if turn >= WARMUP:
                trips = 2 if kind == "send" and way is not ways[-1] else 1
                taken.append((time.perf_counter() - began) / trips)
    return tuple(map(statistics.median, seconds))


def table(rows: list[Row]) -> str:
    head = ("ranks", "message", "size", "gloo, ms", "shared memory, ms", "times as fast")
    return markdown((*head, "a copy, ms"), map(_cells, rows))


def _cells(row: Row) -> tuple[Any, ...]:
    small = row.size_bytes < 2**20
    size = f"{row.size_bytes >> 10} KB" if small else f"{row.size_bytes >> 20} MB"
    ms = (f"{seconds * 1e3:.3g}" for seconds in (row.gloo_s, row.board_s))
    times, copy_ms = f"{row.gloo_s / row.board_s:.1f}", f"{row.copy_s * 1e3:.2g}"
    return row.ranks, row.kind, size, *ms, times, copy_ms
