"""The largest batch that fits: the search by properties, and real processes that run out."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.lab.comparison.batch_finder import find_batch, scaled_lr, search
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.failure_report import RunFailed


@given(st.integers(0, 5000), st.integers(1, 4096), st.integers(1, 4096))
def test_the_search_finds_the_largest_in_few_tries(largest: int, first: int, most: int) -> None:
    first = min(first, most)
    tried: list[int] = []

    def fits(size: int) -> bool:
        assert 1 <= size <= most and size not in tried
        tried.append(size)
        return size <= largest

    assert search(fits, first, most) == min(largest, most)
    assert len(tried) <= 2 * most.bit_length() + 2


@pytest.mark.parametrize(
    ("batch", "rule", "expected"), [(64, "linear", 2e-3), (128, "sqrt", 2e-3), (8, "sqrt", 5e-4)]
)
def test_learning_rates(batch: int, rule: str, expected: float) -> None:
    assert scaled_lr(1e-3, batch, 32, rule) == pytest.approx(expected)


SMALL = {"model": "gpt2-tiny", "layers": 2, "seq_len": 256, "threads": 1}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on address space")
def test_a_real_limit_is_found(tmp_path: Path, warm: Ranks) -> None:
    found = find_batch(
        "tests/support/fault_scripts/limited_train.py",
        first=128,
        most=1024,
        step=128,
        out=tmp_path,
        ranks=warm,
        env={"MORE_BYTES": str(1_500_000_000)},
        **SMALL,
    )
    sizes = {attempt.batch_size: attempt.fits for attempt in found.tries}
    assert sizes[128] and not all(sizes.values())
    assert all(fits == (size <= found.batch_size) for size, fits in sizes.items())
    assert found.batch_size + 128 in sizes and not sizes[found.batch_size + 128]
    assert f"A batch of {found.batch_size} fits" in found.sentence
    assert len(found.table) == len(sizes)


@pytest.mark.slow
def test_another_failure_is_not_taken_for_a_full_memory(tmp_path: Path, warm: Ranks) -> None:
    with pytest.raises(RunFailed, match="no such data file"):
        find_batch("scripts/train.py", data="none.tsv", out=tmp_path, ranks=warm, **SMALL)
