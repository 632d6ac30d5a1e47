"""Who gets which tokens: all of them, as many each, and as much work."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.context.balance import SPLITS, deal, shares_of_work, work
from helpers.engine.context.stretches import stretches
from helpers.engine.errors import UserError
from helpers.engine.models.documents import PADDING, Document, attention_mask, documents_of


@st.composite
def packed(draw) -> tuple[torch.Tensor, int]:
    """Documents of a row that 2 * ranks divides, whose numbers may come again, and ranks."""
    ranks = draw(st.integers(1, 6))
    length = 2 * ranks * draw(st.integers(1, 12))
    numbers = draw(st.lists(st.integers(0, 5), min_size=length, max_size=length))
    documents = torch.tensor([sorted(numbers) if draw(st.booleans()) else numbers])
    documents[:, length - draw(st.integers(0, length - 1)) :] = PADDING
    return documents, ranks


@settings(deadline=None)
@given(packed(), st.sampled_from(SPLITS))
def test_every_token_is_somebodys_and_all_have_as_many(case, split):
    numbers, ranks = case
    [documents] = documents_of(numbers, numbers.shape[1])
    hands = deal(documents, numbers.shape[1], ranks, split)
    tokens = [[token for block in hand for token in block] for hand in hands]
    assert all(own == sorted(own) for own in tokens)
    assert {len(own) for own in tokens} == {numbers.shape[1] // ranks}
    assert sorted(token for own in tokens for token in own) == list(range(numbers.shape[1]))


@settings(deadline=None)
@given(packed(), st.data())
def test_work_is_what_the_mask_lets_through(case, data):
    numbers, _ = case
    first, end = sorted(data.draw(st.integers(0, numbers.shape[1])) for _ in range(2))
    seen = attention_mask(numbers)[0, 0].sum(1).masked_fill(numbers[0] == PADDING, 0)
    [documents] = documents_of(numbers, numbers.shape[1])
    assert work(documents, range(first, end)) == seen[first:end].sum()


@settings(deadline=None)
@given(packed(), st.sampled_from(SPLITS))
def test_stretches_are_a_rank_s_tokens(case, split):
    numbers, ranks = case
    [documents] = documents_of(numbers, numbers.shape[1])
    for hand in deal(documents, numbers.shape[1], ranks, split):
        own = [token for block in hand for token in block]
        found = stretches(hand, documents)
        of = {place: one.document for one in found for place in range(one.first, one.end)}
        expected = {t: one.number for one in documents for t in range(one.first, one.end)}
        expected = {token: number for token, number in expected.items() if token in own}
        assert of == expected
        assert all(own[one.here] == list(range(one.first, one.end)) for one in found)
        assert all(
            a.end < b.first or a.document != b.document for a, b in itertools.pairwise(found)
        )


@pytest.mark.parametrize("ranks", (2, 3, 4, 8))
def test_of_one_document_block_i_goes_with_block_2n_1_i(ranks):
    size, length = 3, 6 * ranks
    for rank, hand in enumerate(deal([Document(0, 0, length)], length, ranks)):
        assert [block.start // size for block in hand] == [rank, 2 * ranks - 1 - rank]
    assert shares_of_work([length], ranks) == pytest.approx([1 / ranks] * ranks)


def test_contiguous_parts_wait_for_the_last():
    with pytest.raises(UserError, match="split is one of balanced, contiguous, not 'contigous'"):
        shares_of_work([4096], 4, "contigous")
    found = shares_of_work([4096], 4, "contiguous")
    assert found == pytest.approx([1 / 16, 3 / 16, 5 / 16, 7 / 16], abs=1e-3)


@pytest.mark.parametrize(
    ("lengths", "work"), [([3, 5], [1 + 2 + 3 + 1, 2 + 3 + 4 + 5]), ([3, 4], [7, 2 + 3 + 4])]
)
def test_a_share_is_of_the_keys_that_queries_see(lengths, work):
    """Of documents whose border is inside the first part; padding costs nothing."""
    found = shares_of_work(lengths, 2, "contiguous")
    assert found == [own / sum(work) for own in work]


def test_packed_rows_are_balanced_by_their_documents():
    """Lengths as packing leaves them: a third above the mean at most, contiguous parts far off."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(16, 1024, (6,), generator=generator).tolist()
        assert 4 * max(shares_of_work(lengths, 4)) < 4 / 3
    long_last = [100, 200, 1748]
    assert 4 * max(shares_of_work(long_last, 4)) < 1.1
    assert 4 * max(shares_of_work(long_last, 4, "contiguous")) > 1.5


@pytest.mark.parametrize("lengths", ([], [0], [3.0], [-1], [True]))
def test_what_is_no_length_is_refused(lengths):
    with pytest.raises(UserError, match="whole numbers"):
        shares_of_work(lengths, 2)
