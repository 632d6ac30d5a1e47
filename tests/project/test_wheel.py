"""A wheel holds all that git knows of the package and its data, and trains by itself."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ("helpers", "data", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows the list of files"),
]


def known_to_git() -> list[str]:
    """The files that a wheel is made from, with those that are not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *INPUTS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).exists()})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, in which an older build has left a module that is gone."""
    folder = tmp_path_factory.mktemp("wheel")
    project = folder / "project"
    for name in known_to_git():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    left_behind = project / "build" / "lib" / "helpers" / "gone.py"
    left_behind.parent.mkdir(parents=True)
    left_behind.touch()
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, project], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python_with_wheel(wheel, tmp_path_factory):
    """An environment with the wheel and the packages installed here, without the project."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    # the folder named in a .pth file adds its packages, not its own .pth files: they would bring
    # the project's helpers back
    installed_here = Path(importlib.util.find_spec("torch").origin).parents[1]
    (packages / "installed_here.pth").write_text(f"{installed_here}\n")
    return folder / "bin" / "python"


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


def test_two_ranks_train_from_the_wheel_alone(python_with_wheel, tmp_path):
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 -m helpers.train"
    arguments = "--model gptj-tiny --tp 2 --steps 5 --out x"
    run(python_with_wheel, tmp_path, *launcher.split(), *arguments.split())
    summary = json.loads((tmp_path / "x" / "summary.json").read_text("utf-8"))
    assert summary["status"] == "done"
