"""Rows that hold several documents, and attention that keeps these apart.

documents   0 0 0 0 1 1 1 2 2 -       which document of its row a token is of; -1 is padding
positions   0 1 2 3 0 1 2 0 1 0       they start again with each
attention   a token sees itself and what came before it in its own document

A document is a run of one number: a number that comes again later in the row is another document's.

Attention takes the documents one after another (`by_documents`): as many fused calls as documents,
and no mask. A mask of a row of n tokens has n^2 numbers, and with one no kernel leaves a half out;
documents of l tokens take l^2 each. Where they begin and end is known on the host, so that no
device is asked, and a dry run, whose tensors have no values, settles it alike. Short rows, and
models that attend in ways of their own, get the mask (`model_inputs`).

Source: Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, section 3.2.3.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

PADDING = -1


class Document(NamedTuple):
    """A stretch of a row, with a number of its own there; `end` is after its last token."""

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
    from torch._subclasses.fake_tensor import FakeTensor  # which needs more than torch

    if isinstance(numbers, FakeTensor):  # in a dry run, where nobody knows their values
        return [[Document(0, 0, length)] for _ in numbers]
    return [_documents(row) for row in numbers]


def _documents(row: Tensor) -> list[Document]:
    found, first = [], 0
    numbers, lengths = torch.unique_consecutive(row, return_counts=True)
    for number, length in zip(numbers.tolist(), lengths.tolist()):
        if number != PADDING:
            found.append(Document(len(found), first, first + length))
        first += length
    return found


def positions(documents: Tensor) -> Tensor:
    """The position of each token in its document. [batch, seq] to [batch, seq]."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    return index - index.where(_begins(documents), 0).cummax(1).values


def _begins(documents: Tensor) -> Tensor:
    """Where a document, or padding, begins. [batch, seq] to boolean [batch, seq]."""
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return begins


def attention_mask(documents: Tensor) -> Tensor:
    """Which keys (last dim) a query may see. [batch, seq] to boolean [batch, 1, seq, seq].

    Padding sees padding, so that no row of the mask is empty: softmax over nothing is not a number.
    """
    runs = _begins(documents).cumsum(1)
    same = runs.unsqueeze(2) == runs.unsqueeze(1)
    return same.tril().unsqueeze(1)


def model_inputs(documents: Tensor) -> dict[str, Tensor]:
    """What a transformers model needs beside the ids of packed rows. documents: [batch, seq].

    The mask is given whole: from positions alone transformers finds the documents for some
    architectures and not for others (not for Falcon), and says nothing.
    """
    return {"position_ids": positions(documents), "attention_mask": attention_mask(documents)}


@contextmanager
def one_document_a_row() -> Iterator[None]:
    """For so long transformers does not look for documents in the positions, which it makes itself.
    It would find none, and a host would wait for its GPU to know that."""
    from transformers import masking_utils

    look = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = look


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def by_documents(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Sequence[Sequence[Document]],
    window: int | None = None,
    key_bias: Tensor | None = None,
) -> Tensor:
    """Causal attention inside each document.

    Args:
        attend: of one document; takes query, key, value, and a mask or None, which means causal.
        query, key, value: [batch, heads, seq, head_dim]; key and value may have fewer heads.
        rows: the documents of each row of the batch, in their order.
        window: keys that a query sees at most.
        key_bias: [heads, seq], added to the scores by the key's place in the row.

    Returns:
        [batch, heads, seq, head_dim].
    """
    found = []
    for of_row, *states in zip(rows, query.unbind(0), key.unbind(0), value.unbind(0), strict=True):
        spans = _spans(of_row, query.shape[2])
        parts = zip(*(state.unsqueeze(0).split(list(map(len, spans)), 2) for state in states))
        row = [
            attend(q, k, v, _mask(q, span, window, key_bias))
            for span, (q, k, v) in zip(spans, parts, strict=True)
        ]
        found.append(torch.cat(row, 2))
    return torch.cat(found)


def _spans(documents: Sequence[Document], length: int) -> list[range]:
    """All of a row: documents, and the padding around them, which sees itself like one more, so
    that every weight has a gradient whatever a row holds."""
    spans, end = [], 0
    for document in documents:
        spans += [range(end, document.first), range(document.first, document.end)]
        end = document.end
    return [span for span in (*spans, range(end, length)) if span]


def _mask(query: Tensor, span: range, window: int | None, key_bias: Tensor | None) -> Tensor | None:
    """What is added to a document's scores, or which keys are seen; None where it is causality
    alone."""
    length = query.shape[2]
    narrow = window is not None and window < length
    if key_bias is None and not narrow:
        return None
    seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    if narrow:
        seen = seen.triu(1 - window)
    if key_bias is None:
        return seen
    bias = key_bias[:, None, span.start : span.stop].to(query.dtype)
    return bias.masked_fill(~seen, -torch.inf).unsqueeze(0)
