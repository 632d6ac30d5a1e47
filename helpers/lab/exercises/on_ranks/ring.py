"""5d: an all-reduce by send and receive between neighbours of a ring."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.lab.exercises.on_ranks.judge import near, random, wrong_kind
from helpers.lab.exercises.on_ranks.observed import only_sends

RANKS = 3  # on two, the neighbour to the left is the one to the right
SIZES = (12, 10)


def exam(answer: Callable[..., Any]) -> str:
    """5d: ring_all_reduce(x, rank, ranks), of a tensor that divides by the ranks and one that does
    not."""
    for size in SIZES:
        if words := _one(answer, size):
            return f"with {size} numbers, {words}" if words.startswith("the sum") else words
    return ""


def _one(answer: Callable[..., Any], size: int) -> str:
    rank = dist.get_rank()
    given = [random(size, seed=one) for one in range(RANKS)]
    own, wanted = given[rank], torch.stack(given).sum(0)
    with only_sends() as sent:
        found = answer(own.clone(), rank, RANKS)
    if words := wrong_kind(found, wanted):
        return words
    if not near(found, wanted):
        return _of_sum(found, own, wanted)
    if words := sent.off_ring(rank, RANKS):
        return words
    enough = 2 * (RANKS - 1) * -(-size // RANKS) * own.element_size()
    if sent.bytes > enough:
        return (
            f"the sum is right, but {sent.bytes} bytes were sent where {enough} are enough: send "
            f"pieces of 1/{RANKS}, first to add them, then to pass the sums on"
        )
    return "" if sent.bytes else "nothing went by dist.send or dist.isend"


def _of_sum(found: Tensor, own: Tensor, wanted: Tensor) -> str:
    if near(found, own):
        return "what was returned is the rank's own x: the sum is missing"
    if near(found, wanted / RANKS):
        return "what was returned is the mean; a sum is wanted"
    if near(found, wanted * RANKS) or near(found, wanted * 2):
        return "what was returned is a multiple of the sum: pieces are added twice"
    whole = torch.isclose(found.to(wanted), wanted)
    if whole.any() and not whole.all():
        count = int(whole.sum())
        return (
            f"the sum stands in {count} of {len(own)} numbers: after the round that adds, "
            "another round passes the finished pieces on"
        )
    return "the sum is wrong: which piece is sent in which turn, and which one is received?"
