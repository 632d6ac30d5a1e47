"""Which tokens of a row each rank of cp gets, so that all have as many, and as much work.

A token attends to what came before it in its document, so the last ones cost most:

    blocks of a row       0 1 2 3 4 5 6 7          contiguous   balanced
    keys that each sees   1 2 3 4 5 6 7 8   rank 0   0 1  -> 3    0 7  -> 9
                                            rank 1   2 3  -> 7    1 6  -> 9
                                            rank 2   4 5  -> 11   2 5  -> 9
                                            rank 3   6 7  -> 15   3 4  -> 9

Balanced: the blocks are dealt by their work, the dearest first, forth and back over the ranks. Of
one long document that pairs block i with block 2n - 1 - i, as zigzag does; of packed rows it
follows the documents' lengths, each row by itself.

Sources: Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.2 (chunk i with 2n - 1 - i);
Brandon et al. 2023, Striped Attention, section 3 (why contiguous parts wait for each other).
"""

import torch
from torch import Tensor

from ..models.document_mask import PADDING, positions

SPLITS = ("balanced", "contiguous")
FINER = (4, 2, 1)  # times 2 cp blocks for packed rows, the first that fits


def work(documents: Tensor, window: int | None = None) -> Tensor:
    """How many keys each token sees. documents: [rows, seq], of padding PADDING, to [rows, seq]."""
    seen = positions(documents) + 1
    seen = seen if window is None else seen.clamp(max=window)
    return seen.masked_fill(documents == PADDING, 0)


def deal(documents: Tensor, ranks: int, split: str = "balanced") -> Tensor:
    """The places in the row of each rank's tokens, ascending.

    Args:
        documents: [rows, seq]; seq is a multiple of 2 * ranks.
        split: one of SPLITS.

    Returns:
        [ranks, rows, seq / ranks].
    """
    rows, length = documents.shape
    index = torch.arange(length).expand(rows, -1)
    if split == "contiguous" or ranks == 1:
        return torch.stack(index.chunk(ranks, dim=1))
    finer = next(n for n in FINER if length % (2 * ranks * n) == 0) if _packed(documents) else 1
    blocks = index.unflatten(1, (2 * ranks * finer, -1))
    weights = work(documents).unflatten(1, blocks.shape[1:]).sum(2)
    # the dearest first, of equal ones the later: a long document is dealt as zigzag deals it
    order = weights.argsort(dim=1, stable=True).flip(1)
    hands = order.unflatten(1, (-1, ranks))  # [rows, rounds, ranks]
    hands[:, 1::2] = hands[:, 1::2].flip(2)  # forth and back
    dealt = hands.sort(dim=1).values.permute(2, 0, 1)
    return torch.stack([blocks[torch.arange(rows)[:, None], own].flatten(1) for own in dealt])


def shares_of_work(documents: Tensor, ranks: int, split: str = "balanced") -> list[float]:
    """The share of the attention's work that each rank of cp has; 1 / ranks each would be ideal."""
    every = work(documents)
    places = deal(documents, ranks, split)
    each = torch.stack([every.gather(1, own).sum() for own in places]).double()
    return (each / each.sum()).tolist()


def _packed(documents: Tensor) -> bool:
    return bool((documents != 0).any())
