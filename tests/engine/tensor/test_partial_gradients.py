"""Gradients of which each tensor rank has one term: summed in place, few of them in one message."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor import partial_gradients
from helpers.engine.tensor.partial_gradients import sum_partial_gradients
from tests.support.ranks import mesh_of, pool

SIZES = {"a": (4,), "b": (3, 5), "c": (100,), "d": (2, 2), "own": (4,)}


def drawn(rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    made = {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}
    return made | {"b": made["b"].T}  # one that is not contiguous


def summed(most_bytes: int) -> list[int]:
    """Checks the sums; the elements of each message."""
    sent, all_reduce, usual = [], partial_gradients.all_reduce, partial_gradients.MESSAGE_BYTES
    partial_gradients.MESSAGE_BYTES = most_bytes
    partial_gradients.all_reduce = lambda x, group: (sent.append(x.numel()), all_reduce(x, group))
    group = mesh_of(ParallelPlan(tp=2)).get_group("tp")
    gradients, peers = drawn(dist.get_rank()), [drawn(rank) for rank in range(2)]
    held = dict(gradients)
    model = SimpleNamespace(partial_gradients=set(SIZES) - {"own"} | {"on another rank"})
    try:
        sum_partial_gradients(model, gradients, group)
    finally:
        partial_gradients.all_reduce = all_reduce
        partial_gradients.MESSAGE_BYTES = usual
    for name, gradient in gradients.items():
        own = name == "own"
        truth = peers[dist.get_rank()][name] if own else peers[0][name] + peers[1][name]
        assert gradient is held[name] and torch.equal(gradient, truth), name
    return sent


@pytest.mark.parametrize(
    ("most_bytes", "messages"),
    [(10_000, [123]), (128, [19, 100, 4]), (64, [4, 15, 100, 4]), (0, [4, 15, 100, 4])],
)
def test_they_are_summed_in_place_by_messages_of_a_limit(most_bytes, messages):
    for sent in pool(2).run(summed, most_bytes):
        assert sent == messages
