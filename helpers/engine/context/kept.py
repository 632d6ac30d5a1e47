"""Where a block is recomputed, its attention over cp is not: nothing is sent for it twice.

A block that is recomputed runs again before its backward. Its queries, keys and values have to be
made again; the result of its attention and the log-sum-exp, all that the backward needs of it, are
small, and are taken from where the first run has put them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

Result = TypeVar("Result", bound=tuple)


class Kept:
    """What the attention of blocks that are recomputed gave, in the order of the calls."""

    def __init__(self) -> None:
        self.put: list[tuple] | None = None  # where results go
        self.take: list[tuple] | None = None  # where they come from
        self.computing = False

    def or_else(self, compute: Callable[[], Result]) -> Result:
        """What the first run gave, in a second one; else what `compute` gives now."""
        if self.take is not None:
            return self.take.pop(0)
        self.computing = True
        result = compute()
        self.computing = False
        if self.put is not None:
            self.put.append(result)
        return result

    def contexts(self) -> tuple[AbstractContextManager, AbstractContextManager]:
        """For the first run of what is recomputed and for the second, as torch's checkpoint asks
        for them (context_fn)."""
        results: list[tuple] = []
        return self._first(results), self._second(results)

    @contextmanager
    def _first(self, results: list[tuple]) -> Iterator[None]:
        before, self.put = self.put, results
        try:
            yield
        finally:
            self.put = before

    @contextmanager
    def _second(self, results: list[tuple]) -> Iterator[None]:
        before, self.take = self.take, list(results)
        try:
            yield
        finally:
            self.take = before
