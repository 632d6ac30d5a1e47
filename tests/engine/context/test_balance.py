"""Who gets which tokens: all of them, as many each, and as much work."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.engine.context.balance import SPLITS, deal, shares_of_work, work
from helpers.engine.models.document_mask import PADDING, attention_mask


@st.composite
def packed(draw) -> tuple[Tensor, int]:
    """Documents of rows that 2 * ranks divides, and ranks."""
    ranks, rows = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    length = 2 * ranks * draw(st.integers(1, 12))
    numbers = st.lists(st.integers(0, 5), min_size=length, max_size=length)
    documents = torch.tensor([sorted(draw(numbers)) for _ in range(rows)])
    documents[:, length - draw(st.integers(0, length - 1)) :] = PADDING
    return documents, ranks


@settings(deadline=None)
@given(packed(), st.sampled_from(SPLITS))
def test_every_token_is_somebodys_and_all_have_as_many(case, split):
    documents, ranks = case
    places = deal(documents, ranks, split)
    assert places.shape == (ranks, len(documents), documents.shape[1] // ranks)
    assert (places.diff(dim=2) > 0).all()
    everything = places.transpose(0, 1).flatten(1).sort(1).values
    assert torch.equal(everything, torch.arange(documents.shape[1]).expand_as(documents))


@settings(deadline=None)
@given(packed())
def test_work_is_what_the_mask_lets_through(case):
    documents, _ = case
    seen = attention_mask(documents)[:, 0].sum(2).masked_fill(documents == PADDING, 0)
    assert torch.equal(work(documents), seen)


@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
def test_of_one_document_block_i_goes_with_block_2n_1_i(ranks):
    size = 3
    documents = torch.zeros(1, 2 * ranks * size, dtype=torch.long)
    blocks = torch.arange(2 * ranks * size).view(2 * ranks, size)
    for rank, own in enumerate(deal(documents, ranks)):
        pair = torch.cat([blocks[rank], blocks[2 * ranks - 1 - rank]])
        assert torch.equal(own[0], pair if ranks > 1 else torch.arange(2 * size))
    assert max(shares_of_work(documents, ranks)) == pytest.approx(1 / ranks)


def test_contiguous_parts_wait_for_the_last():
    documents = torch.zeros(1, 4096, dtype=torch.long)
    found = shares_of_work(documents, 4, "contiguous")
    assert found == pytest.approx([1 / 16, 3 / 16, 5 / 16, 7 / 16], abs=1e-3)


def test_packed_rows_are_balanced_by_their_documents():
    """Rows of documents as best-fit packing leaves them: within a fifth of the mean, where
    contiguous parts are further off."""
    generator = torch.Generator().manual_seed(0)
    documents = torch.empty(8, 2048, dtype=torch.long)
    for row in documents:
        lengths = torch.randint(16, 1024, (64,), generator=generator)
        row.copy_(torch.arange(64).repeat_interleave(lengths)[:2048])
    assert 4 * max(shares_of_work(documents, 4)) < 1.05
    assert (
        4 * max(shares_of_work(documents[:1], 4))
        < 1.25
        < 4 * max(shares_of_work(documents[:1], 4, "contiguous"))
    )
