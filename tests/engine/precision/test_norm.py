"""The norm of gradients, against torch's own in float64."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.precision.not_finite import not_finite
from helpers.engine.precision.optimizer import LARGE, ROW, gradient_norm
from tests.support.ranks import pool

SIZES = st.lists(st.sampled_from([1, 7, ROW, LARGE, LARGE + ROW, 2 * LARGE + 1]), min_size=1)


def norm_of(tensors: list[torch.Tensor], copies: list[int] | None = None) -> float:
    each = copies or [1] * len(tensors)
    parts = [
        SimpleNamespace(name=str(i), tensor=x, copies=count)
        for i, (x, count) in enumerate(zip(tensors, each))
    ]
    gradients = {str(i): x for i, x in enumerate(tensors)}
    return gradient_norm(parts, gradients, torch.device("cpu")).item()


def exact(tensors: list[torch.Tensor]) -> float:
    return torch.linalg.vector_norm(torch.cat([x.double().flatten() for x in tensors])).item()


@settings(max_examples=25, deadline=None)
@given(sizes=SIZES, spread=st.floats(0, 4), seed=st.integers(0, 99), power=st.integers(-12, 12))
def test_of_tensors_of_any_size_and_spread(sizes, spread, seed, power):
    draw = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(n, generator=draw) * torch.exp(spread * torch.randn(n, generator=draw))
        for n in sizes
    ]
    tensors = [x * 10.0**power for x in tensors]
    assert norm_of(tensors) == pytest.approx(exact(tensors), rel=3e-7)


@pytest.mark.parametrize("value", [1e-30, 1e-23, 1e19, 1e30])
def test_where_float32_has_no_squares(value):
    tensors = [torch.full((2, LARGE), value), torch.full((3,), value)]
    assert norm_of(tensors) == pytest.approx(exact(tensors), rel=1e-6)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_shows(bad):
    x = torch.zeros(LARGE)
    x[-1] = bad
    assert not torch.isfinite(torch.tensor(norm_of([x])))


def test_no_gradient_at_all():
    assert norm_of([torch.zeros(LARGE)]) == 0.0
    assert gradient_norm([], {}, torch.device("cpu")).item() == 0.0


def test_without_a_gradient_it_is_where_the_trainer_is():
    """A rank whose stage is frozen, as one with another's adapters, sums its 0 with the others."""
    assert gradient_norm([], {}, torch.device("meta")).device.type == "meta"


def test_columns_of_a_matrix_are_no_rows_in_memory():
    x = torch.arange(2.0 * LARGE).view(ROW, -1).t()
    assert norm_of([x]) == pytest.approx(exact([x]), rel=3e-7)


def test_numbers_that_two_ranks_hold_count_once():
    x, y = torch.randn(LARGE), torch.randn(LARGE)
    assert norm_of([x, y], [1, 2]) ** 2 == pytest.approx(exact([x]) ** 2 + exact([y]) ** 2 / 2)


def test_float64_stays_float64():
    x = torch.randn(LARGE, dtype=torch.float64)
    assert norm_of([x]) == pytest.approx(exact([x]), rel=1e-14)


def first_not_finite() -> list[str]:
    good, bad = torch.ones(2), torch.tensor([1.0, float("nan")])
    named = {"a": good, "b": bad, "c": bad}
    parts = [SimpleNamespace(name=name, tensor=x) for name, x in named.items()]
    cases = (parts, {"a": bad}), (parts[:1], named), ([], {})
    return [not_finite(7, *case).partition("first in ")[2].partition(";")[0] for case in cases]


def test_the_first_that_is_not_finite_is_named_weights_before_gradients():
    [found] = pool(1).run(first_not_finite)
    assert found == ["the weight b on rank 0", "the gradient b on rank 0", "the loss"]
