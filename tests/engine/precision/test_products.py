"""bf16 products widened to float32: the same numbers as torch's own, and nothing kept is wider."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers.engine.plan import ParallelPlan
from helpers.engine.precision import bf16_products as module
from helpers.engine.precision.bf16_products import WideProducts, products
from tests.support.count_blocks import kept_bytes

CPU = torch.device("cpu")


def made(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).bfloat16().requires_grad_()


def linear() -> tuple[Tensor, list[Tensor]]:
    x, weight, bias = made(6, 5, 32), made(48, 32), made(48)
    return F.linear(x, weight, bias), [x, weight, bias]


def conv1d() -> tuple[Tensor, list[Tensor]]:
    x, weight, bias = made(30, 32), made(32, 48), made(48)
    return torch.addmm(bias, x, weight), [x, weight, bias]


def batched() -> tuple[Tensor, list[Tensor]]:
    x, y = made(4, 6, 8), made(4, 8, 5)
    return x @ y, [x, y]


def attention() -> tuple[Tensor, list[Tensor]]:
    query, key, value = made(2, 3, 16, 8), made(2, 3, 16, 8), made(2, 3, 16, 8)
    return F.scaled_dot_product_attention(query, key, value, is_causal=True), [query, key, value]


def results(work, mode) -> list[Tensor]:
    with mode:
        out, leaves = work()
        out.sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("work", [linear, conv1d, batched, attention])
def test_the_numbers_are_torchs_own(work) -> None:
    for wide, own in zip(results(work, WideProducts()), results(work, nullcontext()), strict=True):
        assert wide.dtype == own.dtype == torch.bfloat16
        torch.testing.assert_close(wide, own, rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("work", [linear, conv1d, batched])
def test_a_sum_is_rounded_once(work) -> None:
    """As the same product in float32, rounded to bf16 at its end."""
    with WideProducts():
        out, leaves = work()
    wide = [leaf.detach().float() for leaf in leaves]
    exact = {
        linear: lambda: F.linear(*wide),
        conv1d: lambda: torch.addmm(wide[2], wide[0], wide[1]),
        batched: lambda: wide[0] @ wide[1],
    }
    assert torch.equal(out, exact[work]().bfloat16())


@pytest.mark.parametrize("work", [linear, attention])
def test_what_is_kept_for_the_backward_stays_narrow(work) -> None:
    found = []
    for mode in (WideProducts(), nullcontext()):
        with mode, kept_bytes() as kept:
            work()
        found.append(dict(kept))
    assert found[0] == found[1]


def test_float32_is_left_alone() -> None:
    x, y = torch.randn(4, 8), torch.randn(8, 3)
    with WideProducts():
        assert torch.equal(x @ y, torch.mm(x, y)) and (x @ y).dtype == torch.float32


@pytest.mark.parametrize(
    ("fields", "units", "wide"),
    [
        ({"precision": "bf16"}, False, True),
        ({"precision": "bf16"}, True, False),
        ({"precision": "bf16", "compile": True}, False, False),
        ({"precision": "fp32"}, False, False),
        ({"precision": "fp16"}, False, False),
    ],
)
def test_when_products_are_widened(fields, units, wide, monkeypatch) -> None:
    monkeypatch.setattr(module, "has_bf16_products", lambda: units)
    assert isinstance(products(ParallelPlan(**fields), CPU), WideProducts) == wide
    assert not isinstance(products(ParallelPlan(**fields), torch.device("cuda")), WideProducts)
