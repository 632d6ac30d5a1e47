from collections.abc import Iterator

import pytest

from helpers.engine.precision import bf16_products


@pytest.fixture(autouse=True)
def a_processor_with_bf16_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever runs the tests. One without them widens what it multiplies, which the formulas, of
    others, leave out: here it does so unseen, under what watches the step's memory."""
    unseen = bf16_products.products_of_processor()
    monkeypatch.setattr(bf16_products, "has_bf16_products", lambda: True)
    with unseen:
        yield
