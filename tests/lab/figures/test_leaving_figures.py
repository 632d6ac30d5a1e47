"""The figures of jobs that leave the service say what their tables say."""

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("pandas")
import pandas

from helpers.lab.drawings.leaving import FOUND, READ, draw_leaving, plot_bills, plot_verdicts


def test_the_drawing_names_what_is_read_and_what_comes_out():
    _, table, alt = draw_leaving()
    assert list(table.index) == list(FOUND)
    assert all(words in alt for words in (*READ, *FOUND, *FOUND.values()))


def test_verdicts_are_summed_over_jobs():
    counts = {
        "one": {"converted": 3, "left out": 2, "refused": 0},
        "other": {"converted": 1, "left out": 0, "refused": 4},
    }
    _, table, sentence = plot_verdicts(counts)
    assert table.to_dict("index") == counts
    assert sentence == "10 uses in all: 4 converted, 2 left out, 4 refused."


def test_a_bill_is_told_as_times_what_training_was_planned_to_cost():
    planned, billed = (pandas.Series(one) for one in ({"a": 2.0, "b": 4.0}, {"a": 20.0, "b": 6.0}))
    _, table, sentence = plot_bills(planned, billed)
    assert table["billed"].tolist() == [20.0, 6.0]
    assert "1.5 (b) to 10.0 (a) times" in sentence
