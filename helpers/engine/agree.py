"""What fails on one rank fails on all, so that no rank waits for one that has given up."""

from collections.abc import Callable
from typing import TypeVar

from helpers.engine.errors import UserError
from helpers.engine.trainer import over_ranks

T = TypeVar("T")


def together(work: Callable[[], T]) -> list[T]:
    """Run `work` on every rank and return each one's result, by rank. Every rank must call it.

    `work` must not talk to other ranks itself: one that fails would leave them waiting.

    Raises:
        UserError, OSError: some rank's work raised it; every rank raises the first such rank's.
    """
    result, error = None, None
    try:
        result = work()
    except (UserError, OSError) as raised:
        error = raised
    outcomes = over_ranks((result, error))
    for _, other in outcomes:
        if other is not None:
            raise other
    return [result for result, _ in outcomes]
