"""The tables that several notebooks show."""

import math

import pytest

pandas = pytest.importorskip("pandas")
from helpers.lab.notebook.common_tables import cost_table, parity_table, prediction_table  # noqa: E402
from helpers.lab.runs.run import load_run  # noqa: E402
from tests.lab.comparison.finished_runs import write_run  # noqa: E402


def test_layers_are_one_kind_and_the_worst_of_them_counts():
    names = ["loss", "h.0.w", "h.11.w", "h.2.b", "head"]
    found = parity_table(pandas.DataFrame({"float32": [1.0, 2, 5, 3, 4]}, index=names))
    assert list(found.index) == ["loss", "h.N.w", "h.N.b", "head"]
    assert found.loc["h.N.w"].to_dict() == {"compared": 2, "float32": 5}
    assert found["compared"].sum() == len(names)


def test_measured_is_told_over_predicted():
    found = prediction_table({"a": (2, 3), "b": [4.0, 1.0], "not measured": (1, None)})
    assert found["measured / predicted"].iloc[:2].to_list() == [1.5, 0.25]
    assert math.isnan(found["measured / predicted"].iloc[2])
    assert found.index.name == "what"


def test_what_a_million_tokens_cost(tmp_path):
    # 40 steps of 8 samples of 10 tokens, 0.25 s each, at 3,600 an hour: 1 a second
    run = load_run(write_run(tmp_path / "run", steps=40, batch=8, step_s=0.25))
    row = cost_table({"here": run}, price_per_hour=3600).loc["here"]
    assert row["samples"] == 320
    assert row["training alone"] == pytest.approx(10 / 3200e-6)
    assert row["whole bill"] > row["training alone"]
    assert row["final loss"] == pytest.approx(3.0 - 0.002 * 39 * 8)
