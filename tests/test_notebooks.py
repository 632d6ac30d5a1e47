"""What the notebooks ask a reader to do, done: stubs, solutions, the snippet to take home."""

import ast
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from helpers.engine.errors import UserError
from helpers.lab import paths
from helpers.lab.exercises import EXERCISES
from helpers.lab.failures import RunFailed
from helpers.lab.launch import launch
from helpers.lab.machine import Machine
from helpers.lab.profiles import preflight
from helpers.lab.record import save_record
from helpers.lab.source import read_source, show_source

pytest.importorskip("pandas")
pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = {path.name.split("_")[0]: path for path in (ROOT / "notebooks").glob("*.ipynb")}
LESSONS = sorted({name[0] for name in EXERCISES})


@cache
def cells(number: str) -> list:
    return nbformat.read(NOTEBOOKS[number], as_version=4).cells


def tagged(number: str, tag: str) -> list[str]:
    return [cell.source for cell in cells(number) if tag in cell.metadata.get("tags", [])]


@pytest.fixture(scope="module")
def names() -> dict[str, dict]:
    """All that a notebook's cells import, as a cell further down finds it."""
    found = {}
    for number in LESSONS:
        code = [cell.source for cell in cells(number) if cell.cell_type == "code"]
        imports = [
            ast.unparse(node)
            for source in code
            for node in ast.parse(source).body
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        found[number] = {}
        exec("\n".join(imports), found[number])
    return found


@pytest.mark.parametrize("number", LESSONS)
def test_stubs_run_and_say_not_done_yet(number, names, capsys):
    stubs = tagged(number, "exercise")
    for stub in stubs:
        exec(stub, dict(names[number]))
    assert capsys.readouterr().out.count(": not done yet. ") == len(stubs) == 3


@pytest.mark.parametrize("number", LESSONS)
def test_solutions_pass(number, names, capsys):
    solutions = tagged(number, "solution")
    for solution in solutions:
        exec(solution, dict(names[number]))
    printed = capsys.readouterr().out
    assert printed.count(": passed. ") == len(solutions) == 3


def test_the_audit_comes_out_as_the_log_says(names, capsys):
    exec(tagged("1", "solution")[2], dict(names["1"]))
    printed = capsys.readouterr().out
    assert "68.1 TFLOP/s a GPU of 312: 21.8% MFU" in printed
    assert "$19.22 billed, 3.4% of it for training" in printed


@pytest.mark.parametrize("number", sorted(NOTEBOOKS))
def test_code_that_a_notebook_shows_is_there(number):
    text = "\n".join(cell.source for cell in cells(number))
    for arguments in re.findall(r"^show_source\((.+?)\)$", text, re.MULTILINE):
        title, code = read_source(*ast.literal_eval(f"({arguments},)"))
        assert title and code


def test_source_is_shown_as_it_stands_in_the_file(capsys):
    title, code = read_source("tests/test_notebooks.py", "ROOT", "cells")
    lines = (ROOT / "tests" / "test_notebooks.py").read_text("utf-8").splitlines()
    spans = [
        span.split("-")
        for span in title.removeprefix("tests/test_notebooks.py, lines ").split(", ")
    ]
    shown = ["\n".join(lines[int(first) - 1 : int(last)]) for first, last in spans]
    assert code == "\n\n\n".join(shown)
    assert code.startswith("ROOT = ") and "@cache\ndef cells" in code
    show_source("tests/test_notebooks.py", "ROOT")
    assert "ROOT = " in capsys.readouterr().out


def test_source_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="defines no 'nothing'; it has: "):
        read_source("tests/test_notebooks.py", "nothing")
    with pytest.raises(UserError, match=r"there is no file tests/nothing\.py"):
        read_source("tests/nothing.py", "nothing")


def test_a_cell_that_runs_again_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert paths.unused("runs/one") == "runs/one"
    (tmp_path / "runs" / "one").mkdir(parents=True)
    assert paths.unused("runs/one") == "runs/one-2"
    (tmp_path / "runs" / "one-2").mkdir()
    assert paths.unused("runs/one") == "runs/one-3"


def test_a_record_says_what_ran_and_on_what(tmp_path, capsys):
    numpy = pytest.importorskip("numpy")
    machine = Machine((), 2, 8 * 10**9, 10**10)
    plan = preflight(1, machine=machine, show=False)
    record = save_record(tmp_path, plan, {"loss": numpy.float64(0.5), "steps": numpy.int64(3)})
    assert record["notebook"] == "1_gptj_tensor_parallel" and len(record["source_sha256"]) == 64
    assert record["profile"] == "tiny" and record["not_shown"]
    assert (tmp_path / "record.json").is_file() and not list(tmp_path.glob("*.part"))
    assert "record.json" in capsys.readouterr().out


CPU = {"CUDA_VISIBLE_DEVICES": ""}
BATCHES = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.parse_args()
ids = torch.randint(2048, (4, 16), generator=torch.manual_seed(0))
batches = [(ids, ids)] * 3
"""


@pytest.mark.slow
def test_the_snippet_to_take_home_trains_on_two_ranks(tmp_path):
    text = "\n".join(cell.source for cell in cells("1") if cell.cell_type == "markdown")
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in snippet.splitlines() if line]) <= 6
    (tmp_path / "snippet.py").write_text(BATCHES + snippet)
    run = launch(tmp_path / "snippet.py", nproc=2, out=tmp_path / "run", env=CPU, show=False)
    losses = [[float(line) for line in run.log(rank).split()] for rank in (0, 1)]
    assert losses[0] == losses[1] and losses[0][2] < losses[0][0]


@pytest.mark.slow
def test_the_parity_check_refuses_a_degree_in_one_line(tmp_path):
    with pytest.raises(RunFailed) as caught:
        launch("scripts/check_parity.py", nproc=3, tp=3, out=tmp_path, env=CPU, show=False)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith("tp=3 does not divide GPT-J's 4 attention heads")
    assert "\n" not in caught.value.message
