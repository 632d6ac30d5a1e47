"""launch() and the doctor where only the package is: copied, or installed from a wheel."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.matrix import part

ROOT = Path(__file__).resolve().parents[3]
RUN = {"nproc": 2, "model": "gptj-tiny", "tp": 2, "steps": 5, "seq_len": 32, "batch_size": 4}
LAUNCH = """
from helpers.lab.launch.launch import launch
run = launch({script!r}, out="runs/first", **{flags!r})
assert len(run.metrics) == {flags[steps]} and run.summary["status"] == "done"
"""


class Place:
    """An empty folder, and the package in another one."""

    def __init__(self, folder: Path, packages: str, data: str) -> None:
        self.here = folder / "here"
        self.here.mkdir()
        self.packages = folder / packages
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "helpers", self.packages / "helpers", ignore=unwanted)
        shutil.copytree(ROOT / "data", self.packages / data)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.here,
            env={**os.environ, "PYTHONPATH": str(self.packages)},
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture
def copied(tmp_path: Path) -> Place:
    return Place(tmp_path, "copies", "data")


@pytest.fixture
def installed(tmp_path: Path) -> Place:
    return Place(tmp_path, "site-packages", "helpers/data")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "script"), part([("copied", "helpers.train")], [("installed", "scripts/train.py")])
)
def test_the_training_is_launched_and_its_command_repeats_it(place, script, request):
    place = request.getfixturevalue(place)
    done = place.python("-c", LAUNCH.format(script=script, flags=RUN))
    assert done.returncode == 0, done.stderr
    record = json.loads((place.here / "runs/first/launch.json").read_text())
    program, *words = shlex.split(record["command"])
    assert program == "torchrun"
    assert words[:5] == ["--standalone", "--nproc-per-node", "2", "-m", "helpers.train"]
    assert words[-2:] == ["--out", "runs/first"]
    assert record["flags"] == {name: value for name, value in RUN.items() if name != "nproc"}
    assert f"$ {record['command']}" in done.stdout and str(place.packages) not in done.stdout
    again = place.python("-m", "torch.distributed.run", *words[:-1], "runs/second")
    assert again.returncode == 0, again.stderr
    first, second = (place.here / "runs" / name / "metrics.jsonl" for name in ("first", "second"))
    assert losses(first) == losses(second) != []


def losses(metrics: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


@pytest.mark.slow
def test_the_doctor_looks_where_the_package_is(copied):
    done = copied.python("-m", "helpers.lab.doctor")
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    said = {line[7:].split("  ")[0]: line for line in lines}
    assert said["data"].startswith("[ok]") and "as published" in said["data"]
    assert said["two ranks, gloo"].startswith("[ok]")
    assert str(copied.packages) not in done.stdout


@pytest.mark.slow
def test_an_unfinished_training_is_known_by_the_modules_name_too(copied):
    """The module says that it is done, or it is not."""
    train = copied.packages / "helpers" / "train" / "__main__.py"
    train.write_text("")
    done = copied.python("-c", LAUNCH.format(script="helpers.train", flags=RUN))
    assert "RunFailed: helpers.train ended with code 0 but did not finish: there" in done.stderr


def test_a_module_that_is_not_there_is_a_mistake(copied):
    code = LAUNCH.format(script="helpers.trian", flags=RUN)
    done = copied.python("-c", code)
    assert "UserError: there is no script helpers.trian, neither in the project" in done.stderr
    assert list(copied.here.iterdir()) == []
