"""What a search for a batch and a sweep are handed: refused in one line where it cannot be."""

import json
import math

import pytest

from helpers.engine.errors import UserError
from helpers.lab.comparison.batch_finder import find_batch, scaled_lr
from helpers.lab.comparison.sweep.__main__ import main
from helpers.lab.comparison.sweep.result import load_sweep
from helpers.lab.comparison.sweep.space import read_space
from helpers.lab.comparison.sweep.sweep import sweep

TRIAL = {"number": 0, "flags": {"lr": 1}, "state": "done", "value": 2, "steps": 3, "seconds": 1}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"first": 1.5}, "first must be a whole number"),
        ({"first": "8"}, "first must be a whole number"),
        ({"most": None}, "most must be a whole number"),
        ({"step": 2.0}, "step must be a whole number"),
        ({"step": True}, "step must be a whole number"),
        ({"first": 2, "step": 4, "most": 64}, "must lie between step=4 and most=64"),
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
    for rule in ("cubic", []):
        with pytest.raises(UserError, match=r"no rule .*; there is: linear, sqrt"):
            scaled_lr(1, 1, 1, rule)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({3: [1]}, "3 is no name of a flag"),
        ({"": [1]}, "'' is no name of a flag"),
        ({"a b": [1]}, "'a b' is no name of a flag"),
        ({"lr": [math.nan, 1]}, "a list of different numbers"),
        ({"lr": (0, 10**400)}, r"a range is \(low, high\)"),
    ],
)
def test_a_space_of_nonsense(space, words):
    with pytest.raises(UserError, match=words):
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


@pytest.mark.parametrize(
    "broken",
    [
        {"objective": None},
        {"direction": 3},
        {"price_per_hour": "x"},
        *({"trials": [TRIAL | {"value": value}]} for value in (None, "x", math.nan, math.inf)),
        *({"trials": [TRIAL | {"seconds": value}]} for value in (None, "x", -1, math.nan)),
        {"trials": [TRIAL | {"flags": 3}]},
        {"trials": [TRIAL | {"number": None}]},
        {"trials": [TRIAL | {"state": 3}]},
        {"trials": [3]},
        {"trials": 3},
    ],
)
def test_a_broken_sweep_is_one_line(broken, tmp_path):
    whole = {"objective": "final_loss", "direction": "minimize", "trials": [TRIAL]}
    (tmp_path / "sweep.json").write_text(json.dumps(whole))
    assert "number 0 is the best" in load_sweep(tmp_path).sentence
    (tmp_path / "sweep.json").write_text(json.dumps(whole | broken))
    with pytest.raises(UserError, match=r"sweep\.json cannot be read: ") as error:
        load_sweep(tmp_path)
    assert "\n" not in str(error.value)
