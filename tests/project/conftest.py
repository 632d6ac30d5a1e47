"""The wheel of this project, and an environment that has it: built once for all tests of them."""

import importlib.util
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project.git import known_to_git

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
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
