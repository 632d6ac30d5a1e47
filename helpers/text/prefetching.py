"""Batches made while the one before is trained on."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from torch import Tensor

from helpers.text.tokens import Batch

AHEAD = 2  # batches that are made before they are asked for


def prefetched(batches: Iterator[Batch], pin: bool = False) -> Iterator[Batch]:
    """The same batches, made by a thread of their own.

    Args:
        pin: into memory that a GPU copies from while the host goes on.
    """

    def make() -> Batch | None:
        batch = next(batches, None)
        return _pinned(batch) if pin and batch is not None else batch

    with ThreadPoolExecutor(1, "batches") as thread:
        coming = deque(thread.submit(make) for _ in range(AHEAD))
        while (batch := coming.popleft().result()) is not None:
            coming.append(thread.submit(make))
            yield batch


def _pinned(batch: Batch) -> Batch:
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **{name: value.pin_memory() for name, value in tensors.items()})
