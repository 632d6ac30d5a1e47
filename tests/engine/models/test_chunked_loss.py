"""The chunked loss: gradients in fewer bits than their factor, columns in eights as on a GPU."""

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.engine.errors import UserError
from helpers.engine.models import chunked_loss
from helpers.engine.models.chunked_loss import NO_TRANSFORM, LogitTransform, columns_at, token_loss
from tests.support.ranks import pool

TOKENS, HIDDEN, VOCABULARY, ROWS = 96, 16, 40, 8
SCALE = 2.0**16  # beyond fp16


class Largest(TorchDispatchMode):
    """Elements of the largest float32 tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float32:
            self.elements = max(self.elements, made.numel())
        return made


def summed(hidden, late):
    torch.manual_seed(1)
    weight = (torch.randn(VOCABULARY, HIDDEN) / 1000).to(hidden.dtype)
    labels = torch.randint(VOCABULARY, (TOKENS,))
    return chunked_loss.token_loss(
        hidden, weight, None, labels, 0, VOCABULARY, group=None, late=late
    )


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_is_scaled_in_float32_a_few_rows_at_a_time(monkeypatch, dtype, late):
    monkeypatch.setattr(chunked_loss, "chunk_bytes", lambda device: 4 * VOCABULARY * ROWS)
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN).to(dtype).requires_grad_()
    (plain,) = torch.autograd.grad(summed(hidden, late), hidden)
    loss = summed(hidden, late) * SCALE
    with Largest() as largest:
        (scaled,) = torch.autograd.grad(loss, hidden)
    assert torch.equal(scaled, (plain.float() * SCALE).to(dtype))
    assert scaled.isfinite().all()
    assert 0 < largest.elements <= ROWS * max(HIDDEN, VOCABULARY)


def test_a_second_backward_and_a_second_derivative_are_refused():
    hidden = torch.randn(TOKENS, HIDDEN, dtype=torch.float64, requires_grad=True)
    loss = summed(hidden, late=False) / 3
    torch.autograd.grad(loss, hidden, retain_graph=True)
    with pytest.raises(UserError, match="call the model again"):
        torch.autograd.grad(loss, hidden)
    with pytest.raises(UserError, match="no second derivative"):
        torch.autograd.grad(summed(hidden, late=False), hidden, create_graph=True)


@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_learnt_from_no_token(late):
    """The mean of none is 0 / 0, in transformers' loss, too, and every gradient is zero."""
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, requires_grad=True)
    hidden, labels = torch.zeros(0, HIDDEN, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    total = token_loss(hidden, weight, None, labels, 0, VOCABULARY, group=None, late=late)
    mean = total / len(labels)
    (gradient,) = torch.autograd.grad(mean, weight)
    assert mean.isnan() and not gradient.any()


def test_columns_in_eights():
    assert [columns_at("cuda", columns) for columns in (50257, 50304, 1, 0)] == [50264, 50304, 8, 0]
    assert columns_at("cpu", 50257) == 50257


def in_eights():
    """As on a GPU, and a few rows a chunk."""
    return patch.multiple(
        chunked_loss,
        columns_at=lambda device, columns: columns_at("cuda", columns),
        chunk_bytes=lambda device: 2048,
    )


def whole_and_ours(hidden, head, labels, transform=NO_TRANSFORM, late=False, group=None):
    """Loss and gradients of the formula, and of `token_loss` in eights, of this rank's columns."""
    vocabulary = len(head[0])
    logits = transform(F.linear(hidden, *head))
    expected = F.cross_entropy(logits, labels, reduction="sum")
    wanted = (hidden, *(x for x in head if x is not None))
    whole = [expected, *torch.autograd.grad(expected, wanted)]
    rank, world = (group.rank(), group.size()) if group else (0, 1)
    each = -(-vocabulary // world)
    own = slice(min(rank * each, vocabulary), min((rank + 1) * each, vocabulary))
    shard = [None if x is None else x.detach()[own].requires_grad_() for x in head]
    with in_eights():
        loss = token_loss(hidden, *shard, labels, own.start, vocabulary, group, transform, late)
    ours = [loss, *torch.autograd.grad(loss, (hidden, *(x for x in shard if x is not None)))]
    if group:
        dist.all_reduce(ours[1], group=group)
    return [*whole[:2], *(x[own] for x in whole[2:])], ours


def drawn(tokens, vocabulary, biased, shift=0.0):
    torch.manual_seed(tokens * vocabulary)
    hidden = torch.randn(tokens, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocabulary, 4, dtype=torch.float64, requires_grad=True)
    bias = torch.full((vocabulary,), shift, dtype=torch.float64).requires_grad_()
    return hidden, (weight, bias if biased else None), torch.randint(vocabulary, (tokens,))


@given(
    tokens=st.integers(1, 40),
    vocabulary=st.integers(1, 40),
    shift=st.sampled_from([None, 0.0, -2000.0, 2000.0]),  # far from what empty columns have
    scale=st.sampled_from([1.0, 0.5]),
    softcap=st.sampled_from([None, 3.0]),
    late=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_empty_columns_take_no_part(tokens, vocabulary, shift, scale, softcap, late):
    inputs = drawn(tokens, vocabulary, shift is not None, shift or 0.0)
    whole, ours = whole_and_ours(*inputs, LogitTransform(scale, softcap), late)
    torch.testing.assert_close(ours, whole, rtol=1e-9, atol=1e-11)


def on_a_rank(vocabulary):
    group = dist.group.WORLD
    return [
        [x.detach() for x in found]
        for found in whole_and_ours(*drawn(24, vocabulary, True), group=group)
    ]


@pytest.mark.parametrize("vocabulary", [101, 48, 3, 1])  # a rank of the last has no column
def test_empty_columns_of_two_ranks_take_no_part(vocabulary):
    for whole, ours in pool(2).run(on_a_rank, vocabulary):
        torch.testing.assert_close(ours, whole)
