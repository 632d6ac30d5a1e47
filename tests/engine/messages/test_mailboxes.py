"""Messages through a mailbox: in order, whole, whoever carries them, and when a rank goes away."""

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.messages.carriers import receive, send
from helpers.engine.messages.mailboxes import (
    NOTES,
    PIECE_BYTES,
    PIECES,
    mailbox,
    neighbours,
    open_mailboxes,
)
from helpers.planner.dry_run.tensor_watch import Watch
from tests.engine.messages.two_processes import last_words
from tests.support.ranks import pool

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="boxes are of Linux")
PIECE = PIECE_BYTES // 4  # float32 of a piece
# one to all pieces of a box and more, and one beside each border
SIZES = (1, 1000, PIECE - 1, PIECE, PIECE + 1, PIECES * PIECE, PIECES * PIECE + 1)


def message(number: int, size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) + number


def one_way(sizes: list[int], ahead: int) -> list[bool]:
    """Rank 0 sends all at once, and rank 1 expects so many before it takes one out. What comes must
    be what was sent; which of them the box carried."""
    group = dist.new_group([0, 1])
    open_mailboxes(group)
    assert mailbox(group, 1 - dist.get_rank()) is not None
    dist.barrier(group)
    if dist.get_rank() == 0:
        sent = [send(message(number, size), group, 1) for number, size in enumerate(sizes)]
        for work in sent:
            work.wait()
        return [type(work).__name__ == "Done" for work in sent]
    coming = []
    for number, size in enumerate(sizes):
        out = torch.empty(size)
        coming.append((number, out, receive(out, group, 0)))
        if len(coming) > ahead:
            arrives(*coming.pop(0))
    for one in coming:
        arrives(*one)
    return []


def arrives(number: int, out: torch.Tensor, work: dist.Work) -> None:
    work.wait()
    assert torch.equal(out, message(number, len(out)))


def test_at_the_borders_of_the_pieces():
    by_box, _ = pool(2).run(one_way, [*SIZES, *SIZES], 0)
    assert by_box[:5] == [True] * 5 and by_box[6] is False


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3 * PIECE), min_size=1, max_size=30),
    ahead=st.integers(0, 5),
)
def test_of_any_sizes_in_order(sizes, ahead):
    pool(2).run(one_way, sizes, ahead)


def test_what_a_full_box_does_not_take_gloo_carries():
    """Rank 1 takes none out before all are sent."""
    by_box, _ = pool(2).run(kept_waiting, [PIECE] * (PIECES + 5))
    assert by_box == [True] * PIECES + [False] * 5


def kept_waiting(sizes: list[int]) -> list[bool]:
    group = dist.new_group([0, 1])
    open_mailboxes(group)
    if dist.get_rank() == 0:
        sent = [send(message(number, size), group, 1) for number, size in enumerate(sizes)]
        dist.barrier()
        for work in sent:
            work.wait()
        return [type(work).__name__ == "Done" for work in sent]
    dist.barrier()
    for number, size in enumerate(sizes):
        out = torch.empty(size)
        arrives(number, out, receive(out, group, 0))
    return []


def round_the_ring(times: int) -> bool:
    """Every rank sends to the next and receives from the one before, in a group for each sender: a
    box goes one way."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % ranks, (rank - 1) % ranks
    groups = [dist.new_group(list(range(ranks))) for _ in range(ranks)]
    for group in groups:
        open_mailboxes(group)
    for number in range(times):
        send(message(number + rank, 5000), groups[rank], to)
        out = torch.empty(5000)
        receive(out, groups[source], source).wait()
        assert torch.equal(out, message(number + source, 5000))
    return True


@pytest.mark.parametrize("ranks", (2, 4))
def test_every_rank_to_the_next(ranks):
    """More messages than a box keeps notes of."""
    assert all(pool(ranks).run(round_the_ring, NOTES + 10 if ranks == 2 else 50))


def test_neighbours():
    assert neighbours(2) == [(0, 1)]
    assert neighbours(4) == [(0, 1), (0, 3), (1, 2), (2, 3)]


def without_a_box() -> bool:
    """Over a group that has none."""
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        send(message(0, 10), group, 1).wait()
        return True
    out = torch.empty(10)
    receive(out, group, 0).wait()
    return torch.equal(out, message(0, 10))


def test_without_a_box_gloo_carries_all():
    assert pool(2).run(without_a_box) == [True, True]


def counted(boxes: bool) -> list[tuple[str, int, int]]:
    group = dist.new_group([0, 1])
    if boxes:
        open_mailboxes(group)
    with Watch() as watch:
        if dist.get_rank() == 0:
            send(message(0, 10), group, 1).wait()
        else:
            receive(torch.empty(10), group, 0).wait()
    return [(sent.kind, sent.ranks, sent.payload_bytes) for sent in watch.sent]


def test_whoever_counts_messages_sees_the_same():
    with_boxes = pool(2).run(counted, True)
    assert with_boxes == pool(2).run(counted, False)
    assert with_boxes == [[("send", 2, 40)], [("receive", 2, 40)]]


SENT_AND_GONE = """
from helpers.engine.messages.carriers import receive, send
from helpers.engine.messages.mailboxes import open_mailboxes
group = dist.new_group([0, 1], timeout=timedelta(seconds=wait_s))
open_mailboxes(group)
if rank == 1:
    send(torch.ones(4), group, 0)
    os.kill(os.getpid(), end)
for _ in range(2):
    receive(torch.ones(4), group, 1).wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "wait_s", "words"),
    [
        (signal.SIGKILL, 60, "RuntimeError: rank 1 of the group has ended"),
        (signal.SIGSTOP, 3, "timed out after 3 s"),
    ],
)
def test_a_sender_that_goes_away_is_named(tmp_path: Path, end, wait_s, words):
    """After its first message, which arrives."""
    assert words in last_words(SENT_AND_GONE, tmp_path, wait_s, end)
