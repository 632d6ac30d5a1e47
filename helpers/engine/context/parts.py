"""A batch of rows over the ranks of cp: what each has of it, and which of its tokens see which."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.causal_loss import IGNORED
from ..models.document_mask import PADDING, positions
from .balance import deal
from .stretches import Rows, Stretch, pairs, stretches


@dataclass(eq=False)
class Part:
    """What each rank has of some rows, and this rank's own number.

    places: [cp, rows, tokens] in the row, ascending; documents: [rows, seq]. One row of each where
    all rows are alike.
    """

    rank: int
    places: Tensor
    documents: Tensor
    known: dict[tuple[int | None, int | None], Rows] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.places)

    @property
    def length(self) -> int:
        """Of a whole row."""
        return self.documents.shape[1]

    @cached_property
    def order(self) -> Tensor:
        """Where each token of a row stands among the ranks' tokens, one rank after another."""
        return self.places.transpose(0, 1).flatten(1).argsort(1)

    def rows(self, owner: int, window: int | None = None) -> Rows:
        """This rank's queries with the keys that rank `owner` has."""
        if (owner, window) not in self.known:
            own, theirs = (self._stretches(self.places[rank]) for rank in (self.rank, owner))
            self.known[owner, window] = self._rows(own, theirs, window)
        return self.known[owner, window]

    def whole_rows(self, window: int | None = None) -> Rows:
        """All queries with all keys, where the tokens stand in the order of the row."""
        if (None, window) not in self.known:
            all_places = torch.arange(self.documents.shape[1]).expand_as(self.documents)
            every = self._stretches(all_places)
            self.known[None, window] = self._rows(every, every, window)
        return self.known[None, window]

    def _stretches(self, places: Tensor) -> list[list[Stretch]]:
        documents = self.documents.gather(1, places)
        return [stretches(*of_row) for of_row in zip(places, documents)]

    def _rows(
        self, queries: Sequence[list[Stretch]], keys: Sequence[list[Stretch]], window: int | None
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
    of = torch.zeros_like(ids[:1]) if documents is None else documents
    at = torch.arange(length).expand(1, -1) if documents is None else positions(of)
    targets = F.pad(labels[:, 1:], (0, 1 + short), value=IGNORED)
    ids, at = F.pad(ids, (0, short)), F.pad(at, (0, short))  # padding stands at a place that exists
    of = F.pad(of, (0, short), value=0 if documents is None else PADDING)
    part = Part(rank, deal(of, ranks, split), of)
    own = part.places[rank].expand(len(ids), -1)
    at = at.expand(len(ids), -1)
    return Share(ids.gather(1, own), targets.gather(1, own), at.gather(1, own), part)
