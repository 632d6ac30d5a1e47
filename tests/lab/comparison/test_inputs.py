"""What a search for a batch and a sweep are handed: refused in one line where it cannot be."""

import math

import pytest

from helpers.engine.errors import UserError
from helpers.lab.comparison.batch_finder import find_batch, scaled_lr
from helpers.lab.comparison.sweep.__main__ import main
from helpers.lab.comparison.sweep.space import read_space
from helpers.lab.comparison.sweep.sweep import sweep


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"first": 1.5}, "first must be a whole number"),
        ({"first": "8"}, "first must be a whole number"),
        ({"most": None}, "most must be a whole number"),
        ({"step": 2.0}, "step must be a whole number"),
        ({"step": True}, "step must be a whole number"),
        ({"limit_bytes": math.nan}, "limit_bytes is nan"),
        ({"limit_bytes": "8"}, "limit_bytes is '8'"),
        ({"out": None}, "out is None"),
        ({"out": ""}, "out is ''"),
        ({"batch_size": 8}, "batch_size is chosen by the search itself"),
        ({"steps": 8}, "steps is chosen by the search itself"),
    ],
)
def test_a_search_that_cannot_be(given, words, tmp_path):
    with pytest.raises(UserError, match=words):
        find_batch("scripts/none.py", **{"out": tmp_path} | given)


@pytest.mark.parametrize("wrong", ["1", None, 1j, math.nan, math.inf, 0, True, 10**400])
def test_a_rate_of_nonsense(wrong):
    for numbers in ((wrong, 1, 1), (1, wrong, 1), (1, 1, wrong)):
        with pytest.raises(UserError, match="must be numbers above 0"):
            scaled_lr(*numbers, "sqrt")
    with pytest.raises(UserError, match="no rule"):
        scaled_lr(1, 1, 1, [])


@pytest.mark.parametrize(
    "space", [{3: [1]}, {"": [1]}, {"a b": [1]}, {"lr": [math.nan, 1]}, {"lr": (0, 10**400)}]
)
def test_a_space_of_nonsense(space):
    with pytest.raises(UserError):
        read_space(space)


@pytest.mark.parametrize(
    "given", [{"seed": -1}, {"seed": None}, {"seed": 0.5}, {"out": 3}, {"out": ""}]
)
def test_a_sweep_that_cannot_be(given, tmp_path):
    pytest.importorskip("optuna")
    with pytest.raises(UserError, match=f"{next(iter(given))} is "):
        sweep("scripts/none.py", {"lr": [1, 2]}, 1, **{"out": tmp_path, "steps": 3} | given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--space", "lr=1:2", "--space", "lr=3:4"], "--space names a flag twice"),
        (["--space", "lr=1:2", "--", "--seed", "3"], "--seed is of the sweep"),
    ],
)
def test_a_sweep_of_a_shell_says_each_thing_once(words, said, capsys):
    with pytest.raises(SystemExit) as left:
        main(["scripts/none.py", "--trials", "1", *words])
    assert left.value.code == 2 and said in capsys.readouterr().err
