"""Batches that are made ahead are the same, in the same order, and there before they are wanted."""

import threading
from collections.abc import Iterator

import pytest
import torch

from helpers.text.prefetching import AHEAD, prefetched
from helpers.text.tokens import Batch
from tests.support.waiting import wait_for


def batches(count: int, made: list[int] | None = None) -> Iterator[Batch]:
    for number in range(count):
        if made is not None:
            made.append(threading.get_ident())
        ids = torch.full((2, 3), number)
        yield Batch(ids, ids, 2, 6)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_they_are_the_same(count: int) -> None:
    found = [int(batch.input_ids[0, 0]) for batch in prefetched(batches(count))]
    assert found == list(range(count))


def test_another_thread_makes_them_and_no_more_than_a_few() -> None:
    made: list[int] = []
    coming = prefetched(batches(20, made))
    next(coming)
    assert wait_for(lambda: len(made) > AHEAD, 10)
    assert len(made) == 1 + AHEAD and threading.get_ident() not in made
    coming.close()


def test_what_fails_there_fails_here() -> None:
    def broken() -> Iterator[Batch]:
        yield from batches(1)
        raise OSError("the disk is gone")

    coming = prefetched(broken())
    next(coming)
    with pytest.raises(OSError, match="the disk is gone"):
        next(coming)
