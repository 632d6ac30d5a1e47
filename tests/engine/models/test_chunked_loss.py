"""What the loss's backward does with a gradient in fewer bits than its factor."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.engine.models import chunked_loss

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
