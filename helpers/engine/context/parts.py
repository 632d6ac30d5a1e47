"""A batch of rows over the ranks of cp: what each has of it, and which of its tokens see which."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.documents import Document, documents_of, positions
from ..models.objectives import IGNORED
from .balance import deal
from .stretches import Rows, Stretch, pairs, stretches


@dataclass(eq=False)
class Part:
    """What each rank has of some rows, and this rank's own number.

    tokens: [row][rank], ascending; documents: [row]. One row of each where all rows are alike.
    """

    rank: int
    length: int
    tokens: list[list[list[range]]]
    documents: list[list[Document]]
    known: dict[tuple[int | None, int | None], Rows] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.tokens[0])

    @cached_property
    def places(self) -> Tensor:
        """Of each rank's tokens in the row, [ranks, rows or 1, tokens]."""
        ranks = range(self.ranks)
        return torch.stack([torch.stack([_index(row[r]) for row in self.tokens]) for r in ranks])

    @cached_property
    def order(self) -> Tensor:
        """Where each token of a row stands among the ranks' tokens, one rank after another."""
        return self.places.transpose(0, 1).flatten(1).argsort(1)

    def rows(self, owner: int, window: int | None = None) -> Rows:
        """This rank's queries with the keys that rank `owner` has."""
        if (owner, window) not in self.known:
            own, theirs = self._stretches(self.rank), self._stretches(owner)
            self.known[owner, window] = _rows(own, theirs, window)
        return self.known[owner, window]

    def whole_rows(self, window: int | None = None) -> Rows:
        """All queries with all keys, where the tokens stand in the order of the row."""
        if (None, window) not in self.known:
            every = [stretches([range(self.length)], of_row) for of_row in self.documents]
            self.known[None, window] = _rows(every, every, window)
        return self.known[None, window]

    def _stretches(self, rank: int) -> list[list[Stretch]]:
        return [stretches(row[rank], of_row) for row, of_row in zip(self.tokens, self.documents)]


def _index(tokens: Sequence[range]) -> Tensor:
    return torch.cat([torch.arange(block.start, block.stop) for block in tokens])


def _rows(
    queries: Sequence[list[Stretch]], keys: Sequence[list[Stretch]], window: int | None
) -> Rows:
    found = [pairs(*of_row, window) for of_row in zip(queries, keys)]
    if len(found) == 1:
        return [(slice(None), found[0])]
    return [(slice(row, row + 1), of_row) for row, of_row in enumerate(found)]


class Share(NamedTuple):
    """A rank's tokens of a batch, [rows, tokens] each.

    targets: what a token predicts. Labels are shifted before a row is cut, so that none is lost at
        a border.
    positions: of the token in its row, or in its document.
    """

    ids: Tensor
    targets: Tensor
    positions: Tensor
    part: Part


def share(
    ids: Tensor,
    labels: Tensor,
    documents: Tensor | None,
    rank: int,
    ranks: int,
    split: str = "balanced",
    multiple: int = 1,
) -> Share:
    """Rank `rank`'s share of a batch, whose rows are made as long as they have to be.

    Args:
        ids, labels: [rows, seq], aligned, on the CPU.
        documents: [rows, seq] of packed rows.
        split: one of balance.SPLITS.
        multiple: what a rank's number of tokens must be one of.
    """
    length = ids.shape[1]
    short = -length % (2 * ranks * multiple)
    whole = length + short
    of_rows = documents_of(documents, whole)
    tokens = [deal(of_row, whole, ranks, split) for of_row in of_rows]
    part = Part(rank, whole, tokens, of_rows)
    at = torch.arange(length).expand(1, -1) if documents is None else positions(documents)
    targets = F.pad(labels[:, 1:], (0, 1 + short), value=IGNORED)
    ids, at = F.pad(ids, (0, short)), F.pad(at, (0, short))  # padding stands at a place that exists
    own = part.places[rank].expand(len(ids), -1)
    at = at.expand(len(ids), -1)
    return Share(ids.gather(1, own), targets.gather(1, own), at.gather(1, own), part)
