"""One list of packages: pyproject, conda's list and the pins agree, and are what is installed."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def pyproject_requirements() -> list[Requirement]:
    """Of the set-up, which leaves out the extra `track`."""
    extras = PROJECT["optional-dependencies"].items()
    brought = (text for name, texts in extras if name != "track" for text in texts)
    texts = [*PROJECT["dependencies"], *brought]
    return [Requirement(text) for text in texts]


def conda_pip_list() -> list[str]:
    lines = (ROOT / "environment.yml").read_text("utf-8").splitlines()
    return [line.strip() for line in lines[lines.index("  - pip:") + 1 :]]


def test_conda_installs_the_list_of_pyproject():
    entries = [line[2:] for line in conda_pip_list() if line.startswith("- ")]
    assert entries.pop() == "-e ."
    conda = {one.name: one.specifier for one in map(Requirement, entries)}
    project = {one.name: one.specifier for one in pyproject_requirements()}
    (pinned,) = conda.pop("torch")
    assert pinned.operator == "=="
    assert project.pop("torch").contains(pinned.version)
    assert conda == project


def test_what_of_an_extra_is_in_the_set_up_too_has_the_same_range():
    track = set(PROJECT["optional-dependencies"]["track"])
    assert track & set(PROJECT["optional-dependencies"]["dev"]) == {"tensorboard>=2.20,<3"}


def test_every_package_of_the_conda_list_says_what_uses_it():
    lines = conda_pip_list()[:-1]
    assert all(line.startswith("# ") for line in lines[0::2])
    assert all(line.startswith("- ") for line in lines[1::2])


def test_conda_brings_python_alone():
    text = (ROOT / "environment.yml").read_text("utf-8")
    assert re.findall(r"^  - (.*)$", text, re.MULTILINE) == [
        "conda-forge",
        "nodefaults",
        "python=3.11",
        "pip",
        "pip:",
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_within_its_range(python):
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate({"python_version": python}):
                assert pin.name not in pins
                (pins[pin.name],) = (one.version for one in pin.specifier)
    for requirement in pyproject_requirements():
        assert requirement.specifier.contains(pins[requirement.name]), requirement.name
    conda = (ROOT / "environment.yml").read_text("utf-8")
    assert f"torch=={pins['torch']}" in conda


def test_the_environment_that_runs_the_tests_is_the_pinned_kind():
    for requirement in pyproject_requirements():
        installed = Version(metadata.version(requirement.name))
        assert requirement.specifier.contains(installed.public), requirement.name
