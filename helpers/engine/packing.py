"""Several documents in one row, and attention that keeps each to itself.

    documents   0 0 0 0 1 1 1 2 2 -       which document of its row a token is of; -1 is padding
    positions   0 1 2 3 0 1 2 0 1 0       they start again with each
    attention   a token sees itself and what came before it in its own document

Documents stay whole: rows are filled by best fit, longest first, and what remains is a shorter row.
Only a document that is longer than a row is cut, into parts of its own.

Source: Ding et al. 2024, Fewer Truncations Improve Language Modeling, section 3 (best-fit packing).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from helpers.engine.errors import UserError

PADDING = -1


def cut(length: int, seq_len: int) -> list[range]:
    """A document of `length` tokens in as few parts of at most `seq_len` as can be, about equal."""
    parts = -(-length // seq_len)
    ends = [length * part // parts for part in range(parts + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def pack(lengths: Sequence[int], seq_len: int) -> list[list[int]]:
    """Which documents share a row: each once, at most `seq_len` tokens in a row.

    The longest unplaced document goes where it leaves the least room, and to a new row where it
    fits into none. Depends on the arguments alone.

    Args:
        lengths: tokens of each document, from 1 to `seq_len`.
    """
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = {}  # room left -> rows
    rooms: list[int] = []  # the keys of by_room, sorted
    for document in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[document]
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = len(rows), seq_len
            rows.append([])
        else:
            room = rooms[place]
            row = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[place]
        rows[row].append(document)
        left = room - length
        if left:
            if left not in by_room:
                insort(rooms, left)
            by_room.setdefault(left, []).append(row)
    return rows


def positions(documents: Tensor) -> Tensor:
    """The position of each token in its document. [batch, seq] to [batch, seq]."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - index.where(begins, 0).cummax(1).values


def attention_mask(documents: Tensor) -> Tensor:
    """Which keys (last dim) a query may see. [batch, seq] to boolean [batch, 1, seq, seq].

    Padding sees padding, so that no row of the mask is empty: softmax over nothing is not a number.
    """
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return same.tril().unsqueeze(1)


def model_inputs(documents: Tensor) -> dict[str, Tensor]:
    """What a transformers model needs beside the ids of packed rows. documents: [batch, seq].

    The mask is given whole: from positions alone transformers finds the documents for some
    architectures and not for others (not for Falcon), and says nothing.
    """
    return {"position_ids": positions(documents), "attention_mask": attention_mask(documents)}


def check_packing(config: Any, seq_len: int) -> None:
    """Raise a UserError if the model's attention cannot be kept inside documents by a mask."""
    if getattr(config, "alibi", False):
        raise UserError("this model's ALiBi takes no mask of documents: train it without packing")
    window = getattr(config, "sliding_window", None)
    if window and seq_len > window:
        raise UserError(
            f"rows of {seq_len} tokens are longer than this model's attention window of {window}: "
            "train it without packing, or with shorter rows"
        )
