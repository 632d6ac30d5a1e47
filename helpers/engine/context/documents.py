"""Where the documents of a row begin and end, as numbers on the host.

Which tokens a rank gets and which see which is settled there, before anything is computed: a device
is never asked, and a dry run, whose tensors have no values, settles it alike.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..models.document_mask import PADDING


class Document(NamedTuple):
    """A stretch of a row; `end` is after its last token."""

    number: int
    first: int
    end: int


def documents_of(numbers: Tensor | None, length: int) -> list[list[Document]]:
    """The documents of each row, padding left out; of rows that are not packed one row for all.

    Args:
        numbers: [rows, seq], the document that a token is of, PADDING of none; None for rows of one
            document each.
        length: of the rows, with what they are padded by.
    """
    if numbers is None:
        return [[Document(0, 0, length)]]
    return [_documents(row) for row in numbers]


def _documents(row: Tensor) -> list[Document]:
    found, first = [], 0
    numbers, lengths = torch.unique_consecutive(row, return_counts=True)
    for number, length in zip(numbers.tolist(), lengths.tolist()):
        if number != PADDING:
            found.append(Document(number, first, first + length))
        first += length
    return found
