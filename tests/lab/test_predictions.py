"""Predictions: kept, shown beside what was measured, and with a default where none was entered."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pandas")
from helpers.engine.errors import UserError
from helpers.lab.figures.tables import number
from helpers.lab.notebook.predictions import Guess, Predictions


def entered(said, default=4, found=None) -> Predictions:
    guesses = Predictions()
    guesses.enter("messages", said, default)
    if found is not None:
        guesses.measured("messages", found)
    return guesses


@pytest.mark.parametrize(
    ("said", "found", "words"),
    [
        (10, 10, "you said 10, and it is 10: right."),
        (9.999999, 10, "you said 10, and it is 10: right."),
        (12, 10, "20% too much"),
        (0.5, 0.625, "you said 0.5, and it is 0.625: 20% too little"),
        (50, 10, "and it is 10: 5 times what was found"),
        (1, 10, "what was found is 10 times as large"),
        (0, 10, "off by 10"),
        (-3, 10, "off by 13"),
        (3, 0, "off by 3"),
        (None, 8, "no number was entered, so the default stands: 4, and it is 8: 50% too little"),
    ],
)
def test_a_prediction_is_shown_beside_what_was_found(capsys, said, found, words):
    entered(said, found=found)
    assert words in capsys.readouterr().out


def test_one_table_and_one_record_at_the_end(tmp_path, capsys):
    guesses = entered(5, found=10)
    guesses.enter("share", None, 0.5)
    guesses.enter("seconds", 3, 1)
    guesses.measured("share", 0.25)
    guesses.show(save_to=tmp_path / "guesses")
    out = capsys.readouterr().out
    assert "How well did I guess?" in out and "2 of 3 were entered" in out
    assert "not measured" in out and (tmp_path / "guesses.csv").exists()
    assert guesses.record["share"] == {"said": 0.5, "entered": False, "found": 0.25}


def test_a_cell_that_is_run_again_takes_the_place_of_the_first():
    guesses = entered(5, found=10)
    guesses.enter("messages", 6, 4)
    assert guesses.record == {"messages": {"said": 6, "entered": True, "found": None}}


@pytest.mark.parametrize("nonsense", ["many", math.nan, math.inf, 10**400, [], {}])
def test_what_is_no_number_is_refused(nonsense):
    with pytest.raises(UserError, match=r"messages: a (finite )?number is wanted"):
        entered(nonsense)
    with pytest.raises(UserError, match=r"messages: a (finite )?number is wanted"):
        entered(1, found=nonsense)


def test_what_was_not_predicted_is_refused():
    with pytest.raises(UserError, match="no prediction of 'bytes'; there are: messages"):
        entered(1).measured("bytes", 1)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e9, 1e9))
def test_any_number_has_words(said, found):
    shown_alike = number(said) == number(found)
    assert (Guess(said, True, found).words == "right") == shown_alike
