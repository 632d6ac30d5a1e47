import pytest

from helpers.engine.precision import bf16_products


@pytest.fixture(autouse=True)
def a_processor_with_bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs the tests: one without them widens what it multiplies, and the formulas, which
    are of others, leave that out."""
    monkeypatch.setattr(bf16_products, "has_bf16_products", lambda: True)
