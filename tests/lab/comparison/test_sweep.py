"""Sweeps: what may be tried, what is found, and going on after being killed."""

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.lab.comparison.sweep.result import DONE, FAILED, STOPPED, load_sweep
from helpers.lab.comparison.sweep.space import from_words, grid, read_space
from helpers.lab.comparison.sweep.sweep import sweep
from helpers.lab.runs.failure_report import RunFailed
from helpers.lab.runs.run import load_run

ROOT = Path(__file__).parents[3]
TINY = {"model": "gptj-tiny", "from_scratch": True, "batch_size": 2, "seq_len": 32, "show": False}
RATES = {"lr": ("log", 1e-4, 1e-1)}


@pytest.fixture(scope="module")
def found(tmp_path_factory, warm):
    """Three rates, of which one makes the loss diverge."""
    out = tmp_path_factory.mktemp("sweep") / "grid"
    space = {"lr": [1e-4, 1e-2, 1e30]}
    return sweep(
        "helpers.train", space, 3, sampler="grid", out=out, ranks=warm, steps=6,
        price_per_hour=3.6, **TINY
    )  # fmt: skip


def test_the_best_of_a_grid_is_the_run_with_the_least_loss(found):
    states = [trial.state for trial in found.trials]
    assert states[:2] == [DONE, DONE] and found.best.flags == {"lr": 1e-2}
    best = load_run(found.run_folder(found.best.number))
    assert found.best.value == best.metrics["loss"].iloc[-1]
    assert found.trials[2].state == FAILED and found.trials[2].value is None


def test_the_table_the_cost_and_the_sentence(found):
    table = found.table
    assert list(table["lr"]) == [1e-4, 1e-2, 1e30]
    assert list(table["cost"]) == pytest.approx([s / 1000 for s in table["seconds"]])
    assert "number 1 is the best, with lr 0.01" in found.sentence and "cost $" in found.sentence
    again = load_sweep(found.folder)
    assert (again.trials, again.facts) == (found.trials, found.facts)


def test_a_finished_sweep_runs_nothing_again_and_another_is_refused(found, warm):
    before = (found.folder / "sweep.json").read_text()
    again = sweep(
        "helpers.train", {"lr": [1e-4, 1e-2, 1e30]}, 3, sampler="grid", out=found.folder,
        ranks=warm, steps=6, price_per_hour=3.6, **TINY
    )  # fmt: skip
    assert again.trials == found.trials and (found.folder / "sweep.json").read_text() == before
    with pytest.raises(UserError, match="has a sweep with sampler 'grid', not 'random'"):
        sweep("helpers.train", {"lr": [1e-4, 1e-2, 1e30]}, 3, sampler="random", out=found.folder,
              steps=6, **TINY)  # fmt: skip


def test_a_grid_of_another_number_of_trials_is_another_grid(found):
    """Over a range its points would be others: between those that were tried."""
    with pytest.raises(UserError, match="has a sweep with trials 3, not 5"):
        sweep("helpers.train", {"lr": [1e-4, 1e-2, 1e30]}, 5, sampler="grid", out=found.folder,
              steps=6, **TINY)  # fmt: skip


def test_trials_that_are_behind_are_stopped(tmp_path, warm):
    """From a good rate on, much worse ones end at a rung; the best is never stopped."""
    space = {"lr": [1e-2, 1e-6, 2e-6, 3e-6]}
    flags = TINY | {"steps": 120}
    found = sweep(
        "helpers.train", space, 4, sampler="grid", halving=True, out=tmp_path / "s", ranks=warm,
        **flags
    )  # fmt: skip
    assert found.best.flags == {"lr": 1e-2}
    stopped = [trial for trial in found.trials if trial.state == STOPPED]
    assert stopped and all(trial.steps < 120 for trial in stopped)
    assert f"{len(stopped)} were stopped" in found.sentence


KILLED = """
import os, signal, sys
from helpers.lab.comparison.sweep import result, sweep
written = result.Sweep.write
def write(self):
    written(self)
    if len(self.trials) == 2 and self.trials[1].state == "running":
        os.kill(os.getpid(), signal.SIGKILL)
result.Sweep.write = write
sweep.sweep("helpers.train", {"lr": ("log", 1e-4, 1e-1)}, 3, seed=5, out=sys.argv[1], steps=3,
    model="gptj-tiny", from_scratch=True, batch_size=2, seq_len=32, show=False)
"""


@pytest.mark.long
def test_a_killed_sweep_goes_on_where_it_was(tmp_path, warm):
    """Killed as its second trial begins: the same trials as without, the first not run again."""
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "one"], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    left = load_sweep(tmp_path / "one")
    assert [trial.state for trial in left.trials] == [DONE, "running"]
    flags = TINY | {"steps": 3, "ranks": warm, "seed": 5}
    one, other = (
        sweep("helpers.train", RATES, 3, out=tmp_path / n, **flags) for n in ("one", "two")
    )
    assert one.trials[0] == left.trials[0]
    assert [t.flags for t in one.trials] == [t.flags for t in other.trials]
    assert [t.value for t in one.trials] == pytest.approx([t.value for t in other.trials], rel=1e-5)


def test_a_first_trial_that_fails_is_a_mistake_of_the_call(tmp_path, warm):
    with pytest.raises(RunFailed, match="unrecognized arguments: --no-such-flag"):
        sweep("helpers.train", {"lr": [1e-3, 1e-2]}, 2, out=tmp_path / "s", ranks=warm, steps=2,
              no_such_flag=1, **TINY)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": {}}, "a space is of flags"),
        ({"space": {"lr": 1e-3}}, "give a list of values, or a range"),
        ({"space": {"lr": (1, 0)}}, "low must be below high"),
        ({"space": {"lr": ("log", 0, 1)}}, "above 0"),
        ({"space": {"lr": (0, math.inf)}}, "a range is"),
        ({"space": {"lr": [1, 1]}}, "different"),
        ({"space": {"batch_size": [1, 2]}}, "in the space and a flag"),
        ({"trials": 0}, "at least 1"),
        ({"steps": None}, "steps must be given"),
        ({"sampler": "guess"}, "sampler is one of tpe, random, grid"),
        ({"objective": "eval_loss"}, "give eval_data"),
        ({"direction": "maximize", "halving": True}, "minimize one"),
        ({"sampler": "grid", "trials": 1}, "too few"),
        ({"halving": "no"}, "halving is True or False"),
        ({"price_per_hour": "4 USD"}, "price_per_hour must be a number"),
        ({"checkpoint_every": -1}, "checkpoint_every must be a whole number"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused_before_anything_starts(changes, words, tmp_path):
    call = {"space": RATES, "trials": 2, "steps": 2, "out": tmp_path / "s", **TINY} | changes
    with pytest.raises(UserError, match=words):
        sweep("helpers.train", **call)
    assert not (tmp_path / "s/trial-000").exists()


def test_a_sweep_of_no_script_leaves_no_folder(tmp_path):
    with pytest.raises(UserError, match="there is no script"):
        sweep("scripts/trian.py", RATES, 2, steps=2, out=tmp_path / "s", **TINY)
    assert not (tmp_path / "s").exists()


@given(st.integers(1, 200), st.integers(1, 3), st.integers(0, 2))
def test_a_grid_is_never_larger_than_the_trials(trials, ranges, lists):
    space = {f"r{n}": ("log", 1.0, 8.0) for n in range(ranges)}
    space |= {f"l{n}": [1, 2, 3] for n in range(lists)}
    checked = read_space(space)
    try:
        points = grid(checked, trials)
    except UserError:
        assert trials < 2**ranges * 3**lists
        return
    assert 2**ranges * 3**lists <= len(points) <= trials
    assert len({json.dumps(point) for point in points}) == len(points)
    assert all(1 <= point[f"r{n}"] <= 8 for point in points for n in range(ranges))


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("lr=log:1e-4:1e-2", ("log", 1e-4, 1e-2)),
        ("warmup=0:10", (0, 10)),
        ("x=float:0:1", (0.0, 1.0)),
        ("optimizer=a,b", ["a", "b"]),
        ("--from-scratch=True,False", [True, False]),
        ("lr=choice:0.1:0.2", [0.1, 0.2]),
    ],
)
def test_a_space_in_words(word, values):
    name, found = from_words(word)
    assert found == values and name.replace("_", "-") in word


@pytest.mark.long
def test_a_sweep_from_a_shell(tmp_path):
    words = ["helpers.train", "--space", "lr=1e-3,1e-2", "--trials", "2", "--sampler", "grid"]
    words += ["--out", tmp_path / "s", "--", "--steps", "2", "--model", "gptj-tiny"]
    words += ["--from-scratch", "--batch-size", "2", "--seq-len", "32"]
    start = [sys.executable, "-m", "helpers.lab.comparison.sweep"]
    done = subprocess.run([*start, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is the best, with lr 0.01" in done.stdout
    done = subprocess.run([*start, "x", "--space", "lr", "--trials", "1"], cwd=ROOT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


@pytest.mark.exhaustive
def test_twelve_trials_come_within_a_tenth_of_a_whole_grid_s_best(tmp_path, warm):
    """On real sentences, 16 rates of a grid beside 12 trials, in at most 5 minutes."""
    flags = TINY | {"steps": 40, "batch_size": 4, "ranks": warm}
    best = sweep("helpers.train", RATES, 16, sampler="grid", out=tmp_path / "g", **flags).best
    began = time.monotonic()
    ours = sweep("helpers.train", RATES, 12, out=tmp_path / "s", **flags).best
    assert time.monotonic() - began < 300
    assert ours.value <= 1.1 * best.value
