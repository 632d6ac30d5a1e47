"""What the notebooks ask a reader to do, done: stubs, solutions, the snippet to take home."""

import ast
import inspect
import json
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.lab import paths
from helpers.lab.exercises.check import check
from helpers.lab.exercises.questions import EXERCISES
from helpers.lab.exercises.solutions import SOLUTIONS, show_solution
from helpers.lab.launch.launch import launch
from helpers.lab.machine.hardware import Machine
from helpers.lab.notebook.preflight import preflight
from helpers.lab.notebook.record import save_record
from helpers.lab.notebook.source_code import read_source, show_source
from helpers.lab.runs.failure_report import RunFailed
from helpers.lab.runs.shard_ladder import SENT_COLUMN, compare_rungs
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.shape.families import model_shape
from helpers.trace.timelines import read_timelines
from tests.support import scripts

pytest.importorskip("pandas")
pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.name.split("_")[0]: path for path in (ROOT / "notebooks").glob("*.ipynb")}
LESSONS = list(dict.fromkeys(exercise.lesson for exercise in EXERCISES.values()))


@cache
def cells(number: str) -> list:
    return nbformat.read(NOTEBOOKS[number], as_version=4).cells


def tagged(number: str, tag: str) -> list[str]:
    return [cell.source for cell in cells(number) if tag in cell.metadata.get("tags", [])]


@pytest.fixture(scope="module")
def names() -> dict[str, dict]:
    """What a notebook's cells import, and the posts that it audits, as a cell further down finds
    them."""
    found = {}
    for number in LESSONS:
        code = [cell.source for cell in cells(number) if cell.cell_type == "code"]
        lines = [
            ast.unparse(node)
            for source in code
            for node in ast.parse(source).body
            if isinstance(node, (ast.Import, ast.ImportFrom)) or is_a_post(node)
        ]
        found[number] = {}
        exec("\n".join(lines), found[number])
    return found


def is_a_post(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("find_post(")


@pytest.mark.parametrize("number", LESSONS)
def test_stubs_run_and_say_not_done_yet(number, names, warm, capsys):
    stubs = tagged(number, "exercise")
    for stub in stubs:  # as a notebook's, whose functions go to the ranks by value
        exec(stub, {**names[number], "ranks": warm, "__name__": "__main__"})
    shown = capsys.readouterr().out
    wanted = [one for one in EXERCISES.values() if one.lesson == number]
    assert shown.count(": not done yet. ") == len(stubs) == len(wanted) >= 3
    assert all(f"{one.name}: not done yet. {one.question}" in shown for one in wanted)
    assert all(check(one.name, None).state == "not done yet" for one in wanted)


@pytest.mark.parametrize("number", LESSONS)
def test_no_solution_is_in_it_and_it_says_how_to_ask_for_one(number, capsys):
    whole = NOTEBOOKS[number].read_text("utf-8")
    for name in (name for name, one in EXERCISES.items() if one.lesson == number):
        body = inspect.getsource(SOLUTIONS[name]).splitlines()[1:]
        lines = [line.strip() for line in body if len(line.strip()) > 30]
        found = [line for line in lines if json.dumps(line)[1:-1] in whole]
        assert len(found) <= len(lines) // 3, found  # a notebook may count parameters elsewhere too
    first = json.dumps(f'show_solution("{number}a")')[1:-1]
    assert f"show_solution()  # of the first: {first}" in whole
    show_solution()
    assert "given the name of an exercise" in capsys.readouterr().out


@pytest.mark.parametrize("number", sorted(NOTEBOOKS, key=int))
def test_a_notebook_stores_the_code_that_it_shows_as_it_stands(number):
    for cell in cells(number):
        for arguments in re.findall(r"^show_source\((.+?)\)$", cell.source, re.MULTILINE):
            title, code = read_source(*ast.literal_eval(f"({arguments},)"))
            stored = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            assert f"{title}\n\n{code}" in "\n".join(stored), f"render notebook {number} anew"


def test_source_is_shown_as_it_stands_in_the_file(capsys):
    title, code = read_source("tests/notebooks/test_notebooks.py", "ROOT", "cells")
    lines = Path(__file__).read_text("utf-8").splitlines()
    spans = [
        span.split("-")
        for span in title.removeprefix("tests/notebooks/test_notebooks.py, lines ").split(", ")
    ]
    shown = ["\n".join(lines[int(first) - 1 : int(last)]) for first, last in spans]
    assert code == "\n\n\n".join(shown)
    assert code.startswith("ROOT = ") and "@cache\ndef cells" in code
    show_source("tests/notebooks/test_notebooks.py", "ROOT")
    assert "ROOT = " in capsys.readouterr().out


def test_a_method_is_shown_without_its_indent():
    title, code = read_source("helpers/engine/pipeline/runner.py", "_Step.forward")
    assert title.startswith("helpers/engine/pipeline/runner.py, lines ")
    assert code.startswith("def forward(self, ") and "\n    _, stage, i = action\n" in code


def test_source_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="defines no 'nothing'; it has: "):
        read_source("tests/notebooks/test_notebooks.py", "nothing")
    with pytest.raises(UserError, match=r"there is no file tests/nothing\.py"):
        read_source("tests/nothing.py", "nothing")
    with pytest.raises(UserError, match=re.escape(r"there is no file a\x00b")):
        show_source("a\0b")
    with pytest.raises(UserError, match=r"README\.md is no Python file"):
        show_source("README.md")


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


def test_the_parity_check_refuses_a_degree_in_one_line(tmp_path):
    options = {"script": "measure/parity", "starts": "compare", "ranks": 3, "out": tmp_path}
    words = "tp=3 does not divide GPT-J's 4 attention heads"
    assert scripts.refusal("--tp", 3, **options).startswith(words)


def measured(out: Path, **what: object) -> dict:
    """What a script found and wrote to the file that is named for it."""
    done = scripts.process(out=out, **what)
    assert done.returncode == 0, done.stderr
    names = {
        "measure/zero_stages": "ladder",
        "measure/long_sequences": "long",
        "measure/wrong_parts": "wrong",
    }
    name = names.get(what["script"], Path(what["script"]).name)
    return json.loads((out / f"{name}.json").read_text())


@pytest.mark.slow
def test_the_parity_check_compares_every_stage_and_counts_messages(tmp_path):
    layout = {"pp": 2, "schedule": "gpipe", "microbatches": 2, "batch_size": 4, "seq_len": 16}
    report = measured(tmp_path, ranks=2, script="measure/parity", **layout)
    compared = report["differences"]["float64"]
    assert "transformer.wte.weight" in compared and "lm_head.weight" in compared
    assert max(compared.values()) < 1e-12
    assert report["sent_bytes"] == [[2 * 16 * 128 * 4] * 2] * 2  # rows x tokens x width x float32


@pytest.mark.slow
def test_schedules_are_measured_on_the_same_batches(tmp_path):
    size = {"layers": 4, "hidden": 32, "heads": 2, "batch_size": 8, "seq_len": 16, "steps": 3}
    cases = ["naive:4", "gpipe:4", "zero-bubble:4", "1f1b:2"]
    report = measured(tmp_path, ranks=2, script="measure/schedules", cases=cases, **size)
    assert list(report) == cases
    for case in cases:
        assert report[case]["losses"] == pytest.approx(report["naive:4"]["losses"], rel=1e-4)
        steps = read_timelines(tmp_path / f"{case.replace(':', '-')}.json")
        assert len(steps) == len(report[case]["step_s"]) == 3
    one, every = (report[case]["kept_bytes"] for case in ("naive:4", "gpipe:4"))
    assert every[0] == pytest.approx(4 * one[0], rel=0.02)
    head = 4 * 2048 * (32 + 1)  # its gradient, which gpipe alone makes in the backward
    assert every[1] == pytest.approx(4 * (one[1] - head), rel=0.02)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cases", "1f1b"), "a case is SCHEDULE:MICROBATCHES, not '1f1b'"),
        (("--cases", "nothing:4"), "schedule must be one of naive"),
        (("--cases", "1f1b:4", "--precision", "int3"), "precision must be one of fp32"),
    ],
)
def test_a_case_that_cannot_be_measured_is_one_line(flags, words, tmp_path):
    options = {"script": "measure/schedules", "starts": "measure", "ranks": 2, "out": tmp_path}
    assert scripts.refusal(*flags, **options).startswith(words)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_pipeline_by_hand_is_right_and_its_mistakes_are_not(tmp_path, warm):
    script, options = "scripts/measure/by_hand_pipeline.py", {"ranks": warm, "show": False}
    run = launch(script, nproc=3, out=tmp_path / "three", **options)
    errors = json.loads((run.path / "demo.json").read_text())["errors"]
    for case in ("naive", "gpipe", "1f1b"):
        assert max(errors[case].values()) < 1e-12
    assert all(value == pytest.approx(7) for value in errors["mean of each micro-batch"].values())
    reverse = errors["one rank in reverse"]
    assert reverse["loss"] < 1e-12 and reverse["gradient, rank 2"] < 1e-12
    assert min(reverse["gradient, rank 0"], reverse["gradient, rank 1"]) > 0.01
    assert len(read_timelines(run.path / "timeline.json")) == 3
    with pytest.raises(RunFailed, match="KeyError: 3") as caught:
        launch(script, nproc=2, broken_rank=1, out=tmp_path / "broken", timeout_s=60, **options)
    assert caught.value.rank == 1


@pytest.mark.exhaustive  # notebook 5 runs it, too
@pytest.mark.slow
def test_the_rungs_are_measured_on_the_same_batches(tmp_path):
    size = {"layers": 2, "hidden": 32, "heads": 2, "batch_size": 8, "seq_len": 16, "steps": 2}
    report = measured(tmp_path, ranks=4, script="measure/zero_stages", **size)
    ddp = report["DDP"]
    for name, found in report.items():
        limit = 1e-2 if "bf16" in name else 1e-5
        assert found["losses"] == pytest.approx(ddp["losses"], rel=limit)
        assert len(found["step_s"]) == 2 and len(found["state_bytes"]) == 4
    shape = model_shape(load_config("neox-tiny", num_hidden_layers=2, hidden_size=32))
    del report["ZeRO-3, bf16"]
    table = compare_rungs(report, shape)
    # rows that do not divide by four leave some ranks a little more than a quarter
    measured_by = {"state": "state, measured MB", "sent per step": SENT_COLUMN}
    for what, column in measured_by.items():
        ratio = table[column] / table[f"{what}, predicted MB"]
        assert ratio.between(0.98, 1.02).all(), ratio


@pytest.mark.parametrize(
    ("ranks", "flags", "words"),
    [
        (2, (), "HSDP needs an even number of at least 4 ranks, not 2"),
        (4, ("--rungs", "ZeRO-4"), "no rung is called 'ZeRO-4'; there are: DDP"),
    ],
)
def test_the_ladder_refuses_in_one_line(ranks, flags, words, tmp_path):
    options = {
        "script": "measure/zero_stages",
        "starts": "measure",
        "ranks": ranks,
        "out": tmp_path,
    }
    assert scripts.refusal(*flags, **options).startswith(words)


@pytest.mark.exhaustive  # notebook 9 runs it, too
@pytest.mark.slow
def test_ways_to_share_a_sequence_keep_what_the_dry_run_says(tmp_path):
    size = {"layers": 1, "hidden": 32, "heads": 4, "lengths": [64, 96], "steps": 2}
    report = measured(tmp_path, ranks=2, script="measure/long_sequences", **size)
    config = load_config("llama-tiny", num_hidden_layers=1, hidden_size=32)
    for way, found in report.items():
        plan = ParallelPlan.from_dict(found["64"]["plan"])
        for length, one in found.items():
            assert one["losses"] == pytest.approx(report["ring"][length]["losses"], rel=1e-5), way
            assert len(one["step_s"]) == 2 and sum(one["sent_bytes"].values()) > 0
            dry = dry_run(config, plan, batch=1, seq_len=int(length))
            assert one["activation_bytes"] == dry.largest["activations"], (way, length)


@pytest.mark.exhaustive  # notebook 9 runs it, too
@pytest.mark.slow
def test_wrong_ways_to_cut_a_sequence_train_and_differ(tmp_path):
    size = {"seq_len": 256, "batch_size": 8, "steps": 5}
    (right,) = measured(tmp_path / "1", ranks=1, script="measure/wrong_parts", **size).values()
    report = measured(tmp_path / "2", ranks=2, script="measure/wrong_parts", **size)
    assert report.pop("right")["losses"] == pytest.approx(right["losses"], rel=1e-5)
    assert len(report) == 4
    for way, wrong in report.items():
        assert wrong["losses"][-1] < wrong["losses"][0], way
        assert abs(wrong["losses"][0] / right["losses"][0] - 1) > 1e-5, way


def test_a_way_that_is_none_is_refused_in_one_line(tmp_path):
    options = {"script": "measure/long_sequences", "starts": "measure", "ranks": 2, "out": tmp_path}
    words = scripts.refusal("--ways", "zigzag", **options)
    assert words.startswith("no way is called 'zigzag'; there are: ring")
    words = scripts.refusal("--lengths", "99999", **options)
    assert words.startswith("seq_len 99999 is longer than the model's")
