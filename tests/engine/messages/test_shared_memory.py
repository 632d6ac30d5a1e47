"""Messages on a board: against one process and gloo's own, and when a rank goes away."""

import os
import signal
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.messages import boards, carriers, shared_memory
from helpers.engine.messages.carriers import (
    Shift,
    all_reduce,
    exchange,
    gather_single,
    scatter_single,
    sum_of,
)
from helpers.planner.dry_run.tensor_watch import Watch
from tests.engine.messages.two_processes import last_words
from tests.support.ranks import pool

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="boards are of Linux")
SLOT = shared_memory.SLOT_BYTES
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
# elements of float32: none to several slots, and one beside each border
SIZES = (1, 3, 1000, 2**16 + 1, SLOT // 4 - 1, SLOT // 4, SLOT // 4 + 1, SLOT + 5)


def numbers_of(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(-9, 10, (size,), generator=generator).to(dtype)


def all_of_them(sizes: list[int], dtype: torch.dtype) -> None:
    group = dist.group.WORLD
    n, rank = group.size(), group.rank()
    assert boards.board_of(group) is not None
    for size in sizes:
        every = [numbers_of(other, size, dtype) for other in range(n)]
        mine = every[rank].clone()
        assert torch.equal(sum_of(mine, group), sum(every))
        assert torch.equal(mine, every[rank])
        all_reduce(mine, group)
        assert torch.equal(mine, sum(every))
        all_reduce(largest := every[rank].clone(), group, dist.ReduceOp.MAX)
        assert torch.equal(largest, torch.stack(every).max(0).values)
        whole, in_place = torch.empty(n * size, dtype=dtype), torch.empty(n * size, dtype=dtype)
        gather_single(whole, every[rank], group)
        in_place.chunk(n)[rank].copy_(every[rank])
        gather_single(in_place, in_place.chunk(n)[rank], group, async_op=True).wait()
        assert torch.equal(whole, torch.cat(every)) and torch.equal(in_place, whole)
        parts = [numbers_of(other, n * size, dtype) for other in range(n)]
        piece, before = torch.empty(size, dtype=dtype), parts[rank].clone()
        scatter_single(piece, parts[rank], group)
        assert torch.equal(piece, sum(parts).chunk(n)[rank])
        assert torch.equal(parts[rank], before)
        round_and_across(parts)


def round_and_across(parts: list[torch.Tensor]) -> None:
    """A shift and an all-to-all of the ranks' `parts`, [n * k] each."""
    group = dist.group.WORLD
    n, rank = group.size(), group.rank()
    assert torch.equal(Shift(parts[rank], group).wait(), parts[(rank - 1) % n])
    across = torch.empty_like(parts[rank])
    exchange(across, parts[rank], group)
    assert torch.equal(across, torch.cat([part.chunk(n)[rank] for part in parts]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_they_are_what_one_process_computes(ranks, dtype):
    pool(ranks).run(all_of_them, list(SIZES[:4]), dtype)


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_at_the_borders_of_a_slot(ranks):
    pool(ranks).run(all_of_them, list(SIZES), torch.float32)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 3 * SLOT // 8), min_size=1, max_size=4))
def test_of_any_sizes_one_after_another(sizes):
    pool(2).run(all_of_them, sizes, torch.float64)


def over_gloo() -> None:
    with patch.object(carriers, "board_of", return_value=None):
        parts = [numbers_of(rank, 4 * 1000, torch.float32) for rank in range(4)]
        round_and_across(parts)


def test_what_goes_round_and_across_does_so_over_gloo_too():
    pool(4).run(over_gloo)


def bits_of_sums() -> list[bytes]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for size in (1000, 2**18):
        x = torch.randn(size, generator=generator)
        found += [sum_of(x, dist.group.WORLD).numpy().tobytes() for _ in range(2)]
    return found


def test_a_sum_is_the_same_on_all_ranks_and_every_time():
    by_rank = pool(4).run(bits_of_sums)
    assert all(found == by_rank[0] for found in by_rank)
    small, small_again, large, large_again = by_rank[0]
    assert small == small_again and large == large_again


def against_gloo() -> None:
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(dist.get_rank()))
    ours, theirs = sum_of(x, dist.group.WORLD), x.clone()
    dist.all_reduce(theirs)
    assert torch.equal(ours, theirs) if dist.get_world_size() == 2 else True
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("ranks", (2, 4))
def test_gloo_sums_alike(ranks):
    pool(ranks).run(against_gloo)


def in_halves() -> list[float]:
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = halves[dist.get_rank() % 2]
    assert boards.board_of(group) is not boards.board_of(dist.group.WORLD)
    return sum_of(torch.tensor([1.0 + dist.get_rank()]), group).tolist()


def test_groups_have_boards_of_their_own():
    assert pool(4).run(in_halves) == [[4.0], [6.0], [4.0], [6.0]]


def carried_by_gloo() -> list[str]:
    group = dist.new_group([0, 1])
    boards.without_board(group)
    with Watch() as watch:
        sum_of(torch.ones(3), group)
    return [sent.kind for sent in watch.sent]


def test_a_group_can_go_without():
    assert pool(2).run(carried_by_gloo) == [["all_reduce"]] * 2


def counted() -> list[tuple[str, int, int]]:
    group = dist.group.WORLD
    boards.board_of(group)
    with Watch() as watch:
        sum_of(torch.ones(10), group)
        gather_single(torch.empty(8), torch.ones(4), group)
        scatter_single(torch.empty(4), torch.ones(8), group)
    return [(sent.kind, sent.ranks, sent.payload_bytes) for sent in watch.sent]


def test_whoever_counts_messages_sees_them():
    seen = [("all_reduce", 2, 40), ("all_gather", 2, 32), ("reduce_scatter", 2, 32)]
    assert pool(2).run(counted) == [seen] * 2


def where_one_rank_cannot(of: str) -> bool:
    """Without memory for the file, or without a way to open it, on one rank alone."""
    failing = {"make": 0, "join": 1}[of]
    real = os.posix_fallocate, os.open

    def fails(*_: object) -> int:
        raise OSError(28, "No space left on device")

    if dist.get_rank() == failing:
        os.posix_fallocate, os.open = fails, fails
    try:
        group = dist.new_group([0, 1])
        assert boards.board_of(group) is None
    finally:
        os.posix_fallocate, os.open = real
    return sum_of(torch.ones(2), group).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("of", ("make", "join"))
def test_where_one_rank_cannot_gloo_carries_all(of):
    assert pool(2).run(where_one_rank_cannot, of) == [True, True]


SUMMED_AND_GONE = """
from helpers.engine.messages.carriers import sum_of
sum_of(torch.ones(4), dist.group.WORLD)
if rank == 1:
    os.kill(os.getpid(), end)
sum_of(torch.ones(4), dist.group.WORLD)
"""


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_and_nothing_is_left(tmp_path):
    words = last_words(SUMMED_AND_GONE, tmp_path, 60, signal.SIGKILL)
    assert words.endswith("RuntimeError: rank 1 of the group has ended")
    assert not [path for path in Path("/dev/shm").iterdir() if "messages" in path.name]


@pytest.mark.slow
def test_a_rank_that_stands_still_is_waited_for_so_long(tmp_path):
    assert "timed out after 3 s" in last_words(SUMMED_AND_GONE, tmp_path, 3, signal.SIGSTOP)
