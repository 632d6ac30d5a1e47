"""What a rank's tokens are: stretches of the row, and which of them see which.

    row            a a a a a a | b b b b        documents a and b
    rank 0 has     a a . . . .   . . b b        stretches a0-a1, b2-b3
    rank 1 has     . . a a a a   b b . .        stretches a2-a5, b0-b1

Between two stretches of a document there are three cases: all keys come before all queries, they
are the same tokens, or no query sees a key. With a window there is a fourth: a mask has to say.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.documents import Document

WHOLE, CAUSAL, MASKED = "whole", "causal", "masked"


class Stretch(NamedTuple):
    """Tokens that follow each other in a document.

    begin: the first one's place among the rank's tokens; first: its place in the row.
    """

    begin: int
    first: int
    length: int
    document: int

    @property
    def here(self) -> slice:
        """Among the rank's tokens."""
        return slice(self.begin, self.begin + self.length)

    @property
    def end(self) -> int:
        """In the row, after the last."""
        return self.first + self.length


class Pair(NamedTuple):
    """Queries that see keys, all of them, those before themselves, or what a mask lets through."""

    queries: Stretch
    keys: Stretch
    sees: str


Rows = Sequence[tuple[slice, list[Pair]]]  # of a batch, and the pairs that these have


def stretches(tokens: Sequence[range], documents: Sequence[Document]) -> list[Stretch]:
    """Of a rank's tokens of one row, without padding."""
    found: list[Stretch] = []
    begin = 0
    for block in tokens:
        for number, first, end in documents:
            first, end = max(first, block.start), min(end, block.stop)
            if end <= first:
                continue
            last = found[-1] if found else None
            if last and last.document == number and last.end == first:
                found[-1] = last._replace(length=last.length + end - first)
            else:
                found.append(Stretch(begin + first - block.start, first, end - first, number))
        begin += len(block)
    return found


def pairs(
    queries: Sequence[Stretch], keys: Sequence[Stretch], window: int | None = None
) -> list[Pair]:
    """Those in which a query sees a key.

    Args:
        window: keys that a query sees at most, its own included; None for all.
    """
    found = []
    for one in queries:
        for other in keys:
            sees = _sees(one, other, window)
            if one.document == other.document and sees is not None:
                found.append(Pair(one, other, sees))
    return found


def _sees(queries: Stretch, keys: Stretch, window: int | None) -> str | None:
    if keys.first >= queries.end:
        return None
    if window is not None and queries.first - (keys.end - 1) >= window:
        return None
    if window is not None and queries.end - 1 - keys.first >= window:
        return MASKED
    if keys.end <= queries.first:
        return WHOLE
    return CAUSAL if keys[1:] == queries[1:] else MASKED


def mask(pair: Pair, window: int | None, device: torch.device) -> Tensor:
    """Which keys, [queries, keys], are seen by the rule of causality and of the window."""
    queries = torch.arange(pair.queries.first, pair.queries.end, device=device).unsqueeze(1)
    keys = torch.arange(pair.keys.first, pair.keys.end, device=device)
    behind = queries - keys
    return (behind >= 0) if window is None else (behind >= 0) & (behind < window)
