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

from collections.abc import Sequence
from itertools import accumulate

from ..errors import UserError
from ..models.documents import Document

SPLITS = ("balanced", "contiguous")
FINER = (4, 2, 1)  # times 2 cp blocks for packed rows: the first that fits


def work(documents: Sequence[Document], tokens: range) -> int:
    """How many keys these tokens of a row see, all together."""
    return sum(_work(one, tokens) for one in documents)


def _work(document: Document, tokens: range) -> int:
    first, end = max(document.first, tokens.start), min(document.end, tokens.stop)
    if end <= first:
        return 0
    return (end - first) * (first + end + 1 - 2 * document.first) // 2  # an arithmetic series


def deal(
    documents: Sequence[Document], length: int, ranks: int, split: str = "balanced"
) -> list[list[range]]:
    """The tokens of each rank, ascending.

    Args:
        documents: of the row.
        length: of the row, with its padding; a multiple of 2 * ranks.
        split: one of SPLITS.
    """
    if split == "contiguous" or ranks == 1:
        return [[own] for own in _blocks(length, ranks)]
    finer = next(n for n in FINER if length % (2 * ranks * n) == 0) if len(documents) > 1 else 1
    blocks = _blocks(length, 2 * ranks * finer)
    # of equal ones the later first: a long document is dealt as zigzag deals it
    dearest = sorted(blocks, key=lambda block: (work(documents, block), block.start), reverse=True)
    hands: list[list[range]] = [[] for _ in range(ranks)]
    for turn in range(0, len(dearest), ranks):
        forth = turn // ranks % 2 == 0
        for hand, block in zip(hands if forth else hands[::-1], dearest[turn : turn + ranks]):
            hand.append(block)
    return [sorted(hand, key=lambda block: block.start) for hand in hands]


def _blocks(length: int, n: int) -> list[range]:
    size = length // n
    return [range(at, at + size) for at in range(0, length, size)]


def shares_of_work(lengths: Sequence[int], ranks: int, split: str = "balanced") -> list[float]:
    """The share of attention's work that each rank of cp has; 1 / ranks each would be ideal.

    Args:
        lengths: tokens of each document of a row, one after another.
        split: one of SPLITS.

    Raises:
        UserError: a length, or the number of ranks, is no whole number of at least 1, or there is
            no such split.
    """
    if split not in SPLITS:
        raise UserError(f"split is one of {', '.join(SPLITS)}, not {split!r:.40}")
    if not all(type(n) is int and n > 0 for n in (*lengths, ranks)) or not lengths:
        raise UserError("lengths and ranks are whole numbers of at least 1")
    documents, length = row_of(lengths, ranks)
    each = [
        sum(work(documents, block) for block in own)
        for own in deal(documents, length, ranks, split)
    ]
    return [own / sum(each) for own in each]


def row_of(lengths: Sequence[int], ranks: int) -> tuple[list[Document], int]:
    """The documents of a row, by their lengths, and the row's own with its padding over ranks."""
    ends = list(accumulate(lengths))
    documents = [Document(i, end - n, end) for i, (n, end) in enumerate(zip(lengths, ends))]
    return documents, ends[-1] + -ends[-1] % (2 * ranks)
