"""How far this rank's clock is ahead of rank 0's.

Each rank asks rank 0 for its time some twenty times. An answer was read half a round trip ago, give
or take half of it, so the fastest one counts.

Source: Cristian 1989, Probabilistic clock synchronization, section 2.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

ROUND_TRIPS = 20

Clock = Callable[[], int]  # nanoseconds


def clock_offset(group: ProcessGroup | None, clock: Clock = time.time_ns) -> dict[str, int]:
    """Compare the clocks of a group's ranks, each with the first one's.

    Args:
        group: of all ranks, that sends tensors of the CPU; None for one process.

    Returns:
        offset_ns, and error_ns: by how much it can be wrong.
    """
    offset = {"offset_ns": 0, "error_ns": 0}
    for peer in range(1, group.size() if group else 1):
        if group.rank() == 0:
            _answer(group, peer, clock)
        elif group.rank() == peer:
            offset = _ask(group, clock)
    return offset


def _answer(group: ProcessGroup, peer: int, clock: Clock) -> None:
    message = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUND_TRIPS):
        dist.recv(message, group=group, group_src=peer)
        message[0] = clock()
        dist.send(message, group=group, group_dst=peer)


def _ask(group: ProcessGroup, clock: Clock) -> dict[str, int]:
    message = torch.zeros(1, dtype=torch.int64)
    answers = []
    for _ in range(ROUND_TRIPS):
        asked = clock()
        dist.send(message, group=group, group_dst=0)
        dist.recv(message, group=group, group_src=0)
        heard = clock()
        answers.append((heard - asked, (asked + heard) // 2 - int(message)))
    trip_ns, offset_ns = min(answers)
    return {"offset_ns": offset_ns, "error_ns": trip_ns // 2}
