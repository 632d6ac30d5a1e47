"""Attention that keeps the documents of a packed row apart.

documents   0 0 0 0 1 1 1 2 2 -       which document of its row a token is of; -1 is padding
positions   0 1 2 3 0 1 2 0 1 0       they start again with each
attention   a token sees itself and what came before it in its own document
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from .architecture import text_config
from .families import has_alibi

PADDING = -1
WINDOWS = ("sliding_window", "window_size")  # of a configuration: keys that a query sees at most


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


def check_packing(config: Any, seq_len: int) -> None:
    """Raise a UserError if the model's attention cannot be kept inside documents by a mask."""
    text = text_config(config)
    if has_alibi(config):
        raise UserError("this model's ALiBi takes no mask of documents: train it without packing")
    window = min((getattr(text, name, None) or seq_len for name in WINDOWS), default=seq_len)
    if seq_len > window:
        raise UserError(
            f"rows of {seq_len} tokens are longer than this model's attention window of {window}: "
            "train it without packing, or with shorter rows"
        )
