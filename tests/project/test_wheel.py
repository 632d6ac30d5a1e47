"""A wheel holds all that git knows of the package and its data, and trains by itself."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.project.git import known_to_git

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows the list of files"),
]


def run(python: Path, folder: Path, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_what_git_knows(wheel):
    expected = [name for name in known_to_git() if name.startswith("helpers/")]
    expected += [f"helpers/{name}" for name in known_to_git() if name.startswith("data/")]
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(expected)
    assert "helpers/data/reviews/train.tsv" in names


def test_what_the_wheel_installs_is_not_the_project(python_with_wheel, tmp_path):
    code = "import helpers; from helpers.text.bundled import bundled; "
    code += "print(helpers.__file__); print(bundled('tokenizer'))"
    found = run(python_with_wheel, tmp_path, "-c", code).splitlines()
    packages = next(python_with_wheel.parents[1].glob("lib/python*/site-packages"))
    assert found == [f"{packages}/helpers/__init__.py", f"{packages}/helpers/data/tokenizer"]


@pytest.mark.exhaustive
def test_two_ranks_train_from_the_wheel_alone(python_with_wheel, tmp_path):
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 -m helpers.train"
    arguments = "--model gptj-tiny --tp 2 --steps 5 --out x"
    run(python_with_wheel, tmp_path, *launcher.split(), *arguments.split())
    summary = json.loads((tmp_path / "x" / "summary.json").read_text("utf-8"))
    assert summary["status"] == "done"
