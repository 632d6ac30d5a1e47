"""What all ranks know: a value from each, and what fails on one fails on all."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from ..errors import UserError
from ..messages.carriers import all_reduce

T = TypeVar("T")


def is_first() -> bool:
    """Is this the rank that writes files, or the only process?"""
    return not dist.is_initialized() or dist.get_rank() == 0


def over_ranks(value: Any, group: ProcessGroup | None = None) -> list[Any]:
    """One value from each rank of a group, by rank, on every one of them; from all ranks where
    none is given."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def largest_over_ranks(number: int) -> int:
    """The largest of the ranks' numbers, by a message of 8 bytes that no GPU takes part in."""
    largest = torch.tensor(number)
    all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def is_same_on_all(data: bytes) -> bool:
    """Have all ranks these bytes? By the largest and the smallest checksum, in one message."""
    number = zlib.crc32(data)
    ends = torch.tensor([number, -number])
    all_reduce(ends, op=dist.ReduceOp.MAX)
    return int(ends.sum()) == 0


def on_all_ranks(work: Callable[[], T], group: ProcessGroup | None = None) -> list[T]:
    """Run `work` on every rank, or in the only process, and return each one's result, by rank.
    Every rank must call it.

    What fails on one rank fails on all, so that no rank waits for one that has given up. `work`
    must not talk to other ranks itself: one that fails would leave them waiting.

    Raises:
        UserError, OSError: some rank's work raised it; every rank raises the first such rank's.
    """
    if not dist.is_initialized():
        return [work()]
    result, error = None, None
    try:
        result = work()
    except (UserError, OSError) as raised:
        error = raised
    outcomes = over_ranks((result, error), group)
    for _, other in outcomes:
        if other is not None:
            raise other
    return [result for result, _ in outcomes]


def same_on_all_ranks(facts: Mapping[str, Any]) -> None:
    """Raise a UserError on every rank if a fact differs between ranks. Every rank must call it."""
    by_rank = over_ranks(dict(facts))
    for rank, others in enumerate(by_rank):
        for name in by_rank[0].keys() | others.keys():
            first, other = by_rank[0].get(name), others.get(name)
            if first != other:
                raise UserError(
                    f"rank {rank} has {name} {other!s:.80} and rank 0 {first!s:.80}: start "
                    "every rank with the same arguments, files and packages"
                )
