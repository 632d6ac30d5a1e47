"""`python -m helpers.leave`: the report, the run's files, and mistakes in one line."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.leave.__main__ import main
from helpers.leave.forms import sweep_line
from helpers.smp.leaving import leave
from helpers.train.arguments import parse
from tests.support.scripts import the_line

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "data/leaving"
SCRIPTS = ROOT / "tests/smp/scripts"
TENSOR = [PUBLISHED / "gptj_tensor.py", PUBLISHED / "gptj_tensor_job.py"]
ASKING = """from sagemaker.pytorch import PyTorch
PyTorch(entry_point="t.py", instance_type="ml.p4d.24xlarge", instance_count=nodes,
        distribution={"pytorchddp": {"enabled": True}}, hyperparameters={"max_steps": 9})
"""


def call(*words):
    return main([str(word) for word in words])


@pytest.fixture
def asking(tmp_path):
    path = tmp_path / "asking.py"
    path.write_text(ASKING)
    return path


def test_the_report_has_a_row_for_every_use_of_each_file(capsys):
    """Cut at nothing: a cell is short, and the data have it whole."""
    assert call(*TENSOR) == 0
    text = capsys.readouterr().out
    found = leave(TENSOR)
    rows = [line for line in text.partition("## Every use")[2].splitlines() if line[:3] == "| /"]
    assert len(rows) == len(found.lines) > 70
    assert all(f"| {line.place} |" in text for line in found.lines)
    assert call(*TENSOR, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [(x["line"], x["text"]) for x in data["lines"]] == [
        (line.place.line, line.text) for line in found.lines
    ]


def test_the_folder_has_a_run_in_every_form(tmp_path, capsys):
    out = tmp_path / "out"
    assert call(*TENSOR, "--write", "--out", out) == 0
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    names = ("run.sh", "script.sh", "slurm.sh", "trainjob.json", "sky.json", "estimator.json")
    assert files == {
        "report.md",
        "report.json",
        *(f"run-1/{name}" for name in (*names, "metric_definitions.json")),
        "written/gptj_tensor.py",
        "written/gptj_tensor.py.diff",
    }
    for path in out.rglob("*.json"):
        json.loads(path.read_text("utf-8"))
    for path in out.rglob("*.sh"):
        subprocess.run(["bash", "-n", path], check=True)
    words = shlex.split((out / "run-1/run.sh").read_text().splitlines()[-1])
    args = parse(words[words.index("helpers.train") + 1 :])
    assert (args.tp, args.steps, args.precision) == (8, 100, "fp16")
    assert (out / "report.md").read_text("utf-8") == capsys.readouterr().out
    assert call(*TENSOR) == 0  # prints alone
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        call(*TENSOR, "--out", out)
    assert "already has report.json" in the_line(capsys.readouterr().err)


def test_a_value_is_asked_for_and_taken(asking, capsys):
    assert call(asking) == 0
    assert "--set nodes=VALUE" in capsys.readouterr().out
    assert call(asking, "--set", "nodes=4") == 0
    assert "--nnodes 4" in capsys.readouterr().out


def test_a_value_that_no_run_can_have_is_a_refusal_of_its_job_alone(file, tmp_path, capsys):
    whole, out = ASKING.replace("nodes", "1"), tmp_path / "out"
    path = file(whole + whole.replace('"max_steps": 9', '"learning_rate": -1'), "job.py")
    assert call(path, "--out", out) == 0
    text = capsys.readouterr().out
    assert text.count("-m helpers.train") == 1 and "--steps 9" in text
    [refusal] = [line for line in text.splitlines() if line.startswith("Refused: ")]
    assert "lr" in refusal and "-1" in refusal
    assert [path.name for path in out.glob("run-*")] == ["run-1"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--set", "nodes"], "write NAME=VALUE"),
        (["--set", "node=4"], "do not ask for it; they ask for nodes"),
        (["--out", "/proc/nowhere"], "cannot write to"),
        (["--out", "x" * 300], "is longer than a file's name can be"),
        (["--out", "a\nb"], "is no name that a file can have"),
        (["--unknown"], "unrecognized arguments"),
        (["nothing.py"], "nothing.py cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(words, line, asking, capsys):
    with pytest.raises(SystemExit, match="2"):
        call(asking, *words)
    assert line in the_line(capsys.readouterr().err)
    assert list(asking.parent.iterdir()) == [asking]


@pytest.mark.parametrize("name", ["report.json", "report.md", "run-1", "written"])
def test_what_is_there_stays_and_nothing_comes_beside_it(name, tmp_path, capsys):
    (tmp_path / name).write_text("precious")
    with pytest.raises(SystemExit, match="2"):
        call(*TENSOR, "--write", "--out", tmp_path)
    assert f"already has {name}" in the_line(capsys.readouterr().err)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_folder_that_is_a_file_or_cannot_be_filled_is_one_line(tmp_path, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    file, out = tmp_path / "file", tmp_path / "deep/out"
    file.touch()
    for folder in (file, file / "out"):
        with pytest.raises(SystemExit, match="2"):
            call(*TENSOR, "--out", folder)
        assert "cannot write to" in the_line(capsys.readouterr().err)
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SystemExit, match="2"):
        call(*TENSOR, "--out", out)
    assert "No space left" in the_line(capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == [file]


def test_the_sweep_of_a_tuner_is_a_line_that_the_sweep_takes():
    from helpers.lab.comparison.sweep.space import from_words, read_space
    from helpers.lab.launch.flags import from_words as flags_of

    [sweep] = leave([SCRIPTS / "job.py"]).sweeps
    words = shlex.split(sweep_line(sweep))
    space = dict(from_words(word.removeprefix("--space=")) for word in words if "--space" in word)
    checked = read_space(space)
    assert (checked["lr"].low, checked["lr"].high, checked["lr"].log) == (1e-5, 1e-3, True)
    assert checked["warmup"] == [0, 10]
    assert sweep.objective == "eval_loss" and "--halving" in words
    assert words[words.index("--trials") + 1] == "12"
    assert flags_of(words[words.index("--") + 1 :])["model"] == "MODEL"


@pytest.mark.parametrize(
    "bounds",
    [
        "1e-5, 1e-3, 'Logarithmic'",
        "max_value=1e-3, min_value=1e-5, scaling_type='Logarithmic'",
        "1e-5, scaling_type='Logarithmic', max_value=1e-3",
    ],
)
def test_bounds_of_a_sweep_go_by_their_names(tmp_path, bounds):
    path = tmp_path / "job.py"
    text, count = re.subn(
        r"ContinuousParameter\(1e-5.*?\)",
        f"ContinuousParameter({bounds})",
        (SCRIPTS / "job.py").read_text(),
    )
    path.write_text(text)
    [sweep] = leave([path]).sweeps
    assert count == 1 and sweep.space["lr"] == ["log", "float", 1e-5, 1e-3]


def test_a_shell_needs_no_vendor_s_library():
    """Of a module of its own: nothing of what is read or of the service is imported."""
    watch = (
        "import sys, helpers.leave.__main__ as m; m.main(sys.argv[1:]); "
        "bad = [n for n in sys.modules if n.split('.')[0] in "
        "('sagemaker', 'smdistributed', 'smdebug', 'boto3', 'torch_xla')]; sys.exit(bad != [])"
    )
    done = subprocess.run(
        [sys.executable, "-c", watch, *TENSOR], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert " uses: " in done.stdout
