"""The versions that pyproject.toml asks for, against those that are installed."""

import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_LIST = re.compile(r"^(\w[\w-]*)\s*=\s*\[(.*)$")
_NEEDS = re.compile(r'"([A-Za-z0-9_.-]+)\s*([<>=!~][^";]*)"')


@dataclass(frozen=True)
class Requirement:
    """A package, the versions that are wanted, the extra that brings it, what is installed."""

    name: str
    wanted: str
    extra: str | None
    installed: str | None

    @property
    def satisfied(self) -> bool:
        return self.installed is not None and within(self.installed, self.wanted)


def read_requirements(pyproject: Path) -> list[Requirement]:
    """The packages of `dependencies` (extra None) and of each extra, in the file's order.

    The few lines are read by pattern, since Python 3.10 has no TOML reader.
    """
    found: list[Requirement] = []
    section, group = "", None
    for line in pyproject.read_text(encoding="utf-8").splitlines():
        line = line.split(" #")[0]
        if line.startswith("["):
            section, group = line.strip(), None
            continue
        opening = _LIST.match(line)
        if opening:
            group = _group(section, opening[1])
        if group is not None:
            for name, wanted in _NEEDS.findall(line):
                extra = None if group == "dependencies" else group
                found.append(Requirement(name, wanted, extra, installed_version(name)))
        if line.rstrip().endswith("]"):
            group = None
    return found


def wanted_python(pyproject: Path) -> str:
    """The value of requires-python, such as '>=3.10'."""
    return re.search(r'^requires-python = "(.*)"', pyproject.read_text(), re.M)[1]


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def within(version: str, wanted: str) -> bool:
    """Whether a version lies in a range of the forms used here: >=a, <b, ==c, with commas."""
    checks = {
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
        "==": lambda a, b: a == b,
    }
    have = _numbers(version)
    for part in wanted.split(","):
        sign, bound = re.fullmatch(r"\s*(>=|==|<)\s*([\w.]+)\s*", part).groups()
        if not checks[sign](have, _numbers(bound)):
            return False
    return True


def _group(section: str, name: str) -> str | None:
    if section == "[project]" and name == "dependencies":
        return name
    return name if section == "[project.optional-dependencies]" else None


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 13) of '2.13.0+cpu' or '2.13.0rc1': the release's numbers without zeros at the end."""
    release = re.match(r"[\d.]+", version)[0].strip(".")
    numbers = [int(part) for part in release.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
