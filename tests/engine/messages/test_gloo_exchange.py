"""Gathers and reduce-scatters of sends and receives: against one process and gloo's own."""

import os
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from helpers.engine.messages import carriers
from helpers.engine.messages.carriers import (
    _gather_by_backend,
    _scatter_by_backend,
    gather_single,
    scatter_single,
)
from helpers.engine.messages.gloo_exchange import Exchange
from helpers.planner.dry_run.tensor_watch import Watch
from tests.support.ranks import pool


@contextmanager
def without_boards():
    with patch.object(carriers, "board_of", return_value=None):
        yield


def parts_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, whose sums are exact in any order."""
    numbers = torch.Generator().manual_seed(rank)
    return torch.randint(-9, 10, shape, generator=numbers).to(dtype)


@without_boards()
def scattered(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    group = dist.group.WORLD
    n, rank = group.size(), group.rank()
    every = [parts_of(other, shape, dtype) for other in range(n)]
    expected = sum(every).chunk(n)[rank]
    parts = every[rank].clone()
    ours, gloo = (torch.full_like(expected, torch.nan) for _ in range(2))
    scatter_single(ours, parts, group)
    _scatter_by_backend(gloo, parts, group=group)
    assert torch.equal(ours, expected) and torch.equal(gloo, expected)
    assert torch.equal(parts, every[rank])


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("shape", ((4, 3), (16,), (8, 2, 5)), ids=str)
@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_each_rank_gets_its_piece_of_the_sum(ranks, shape, dtype):
    pool(ranks).run(scattered, shape, dtype)


@without_boards()
def gathered(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    every = [parts_of(other, shape, dtype) for other in range(n)]
    expected = torch.cat(every)
    ours, in_place, gloo = (torch.zeros_like(expected) for _ in range(3))
    gather_single(ours, every[rank])
    in_place.chunk(n)[rank].copy_(every[rank])
    gather_single(in_place, in_place.chunk(n)[rank])
    _gather_by_backend(gloo, every[rank])
    for found in (ours, in_place, gloo):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16, torch.uint8), ids=str)
@pytest.mark.parametrize("shape", ((4, 3), (1,), (2, 2, 5), (0, 3)), ids=str)
@pytest.mark.parametrize("ranks", (1, 2, 4))
def test_each_rank_gets_all_pieces(ranks, shape, dtype):
    pool(ranks).run(gathered, shape, dtype)


@without_boards()
def messages_of_a_gather(each_node: str) -> list[str]:
    with patch.dict(os.environ, LOCAL_WORLD_SIZE=each_node), Watch() as watch:
        gather_single(torch.empty(4), torch.ones(1))
    return sorted({sent.kind for sent in watch.sent})


def test_between_nodes_the_backend_gathers():
    pieces, ring = ["receive", "send"], ["all_gather"]
    assert pool(4).run(messages_of_a_gather, "4") == [pieces] * 4
    assert pool(4).run(messages_of_a_gather, "2") == [ring] * 4


@without_boards()
def several_at_once() -> list[float]:
    """Sums that are waited for in another order than they were started in, and a gather between."""
    group = dist.group.WORLD
    n, rank = group.size(), group.rank()
    found = [torch.empty(1) for _ in range(3)]
    under_way = [
        scatter_single(mine, torch.full((n,), 10.0**i * (rank + 1)), group, async_op=True)
        for i, mine in enumerate(found)
    ]
    whole = torch.empty(n)
    under_way.insert(1, gather_single(whole, torch.tensor([1.0 + rank]), group, async_op=True))
    for work in reversed(under_way):
        assert isinstance(work, Exchange)
        work.wait()
        work.wait()  # adds nothing
    assert whole.tolist() == [1.0 + other for other in range(n)]
    return [mine.item() for mine in found]


@pytest.mark.parametrize("ranks", (2, 4))
def test_several_on_their_way(ranks):
    whole = sum(range(1, ranks + 1))
    assert pool(ranks).run(several_at_once) == [[whole, 10 * whole, 100 * whole]] * ranks


@without_boards()
def in_halves() -> list[float]:
    """Groups of two ranks each: peers are named by their place in the group."""
    halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = halves[dist.get_rank() % 2]
    mine = torch.empty(1)
    scatter_single(mine, torch.tensor([1.0, 2.0]) + dist.get_rank(), group)
    return mine.tolist()


def test_within_a_part_of_the_ranks():
    assert pool(4).run(in_halves) == [[4.0], [6.0], [6.0], [8.0]]


def loopback_bytes() -> int:
    """Sent by this machine to itself so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    [line] = [line for line in lines if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[8])


@without_boards()
def sent_bytes(collective, elements: int) -> int:
    whole = torch.ones(elements)
    mine = torch.ones(elements // dist.get_world_size())
    dist.barrier()
    before = loopback_bytes()
    tensors = (whole, mine) if collective is gather_single else (mine, whole)
    collective(*tensors, group=dist.group.WORLD)
    dist.barrier()
    return loopback_bytes() - before


@pytest.mark.skipif(not Path("/proc/net/dev").exists(), reason="only Linux counts here")
@pytest.mark.parametrize("ranks", (2, 4))
def test_nothing_is_sent_twice(ranks):
    """All ranks together send n - 1 times the tensor; in gloo's own reduce-scatter twice that."""
    elements = 8 * 2**20
    expected = 4 * elements * (ranks - 1)
    scatters, gathers, gloo = (
        max(pool(ranks).run(sent_bytes, f, elements))
        for f in (scatter_single, gather_single, _scatter_by_backend)
    )
    assert expected <= scatters < 1.3 * expected
    assert expected <= gathers < 1.3 * expected
    assert gloo > 1.6 * expected
