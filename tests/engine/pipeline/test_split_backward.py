"""A backward in halves holds for its second half what that is made from, and nothing else."""

import gc
import weakref

import torch
from torch import nn

from helpers.engine.pipeline.split_backward import Later, linear


def layer(later: Later, name: str) -> nn.Linear:
    made = nn.Linear(4, 4)
    made.later, made.weight_name = later, name
    return made


def through(later: Later, received: torch.Tensor) -> list[nn.Linear]:
    """Both products' first half; the graph between them ends with this call."""
    layers = [layer(later, name) for name in ("first", "second")]
    hidden = received * 2  # of which the first product's input is made
    for one in layers:
        hidden = linear(one, hidden, one.weight, one.bias).tanh()
    with later.put_off("micro-batch"):
        hidden.sum().backward()
    return layers


def test_a_stages_input_is_free_when_the_gradient_of_it_is_sent() -> None:
    later, received = Later(), torch.randn(3, 4, requires_grad=True)
    through(later, received)
    assert received.grad is not None and len(later.pending["micro-batch"]) == 2
    gone = weakref.ref(received.untyped_storage()), weakref.ref(received.grad.untyped_storage())
    del received
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_both_halves_together_are_a_backward() -> None:
    later, received = Later(), torch.randn(3, 4, requires_grad=True)
    layers = through(later, received)
    found: dict[str, torch.Tensor] = {}
    later.compute("micro-batch", found.__setitem__)
    plain = received.detach().requires_grad_()
    hidden = plain * 2
    for one in layers:
        hidden = nn.functional.linear(hidden, one.weight, one.bias).tanh()
    expected = torch.autograd.grad(hidden.sum(), [plain, *(one.weight for one in layers)])
    torch.testing.assert_close((received.grad, found["first"], found["second"]), expected)
    assert later.pending == {}
