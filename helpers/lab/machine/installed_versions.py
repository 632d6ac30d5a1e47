"""The versions that helpers asks for, against those that are installed.

What it asks for is in the metadata that pip writes when it installs helpers, from a repository or a
wheel. A folder that was only copied has none.
"""

import sys
from dataclasses import dataclass
from importlib import metadata

from helpers.engine.errors import need

HELPERS = "helpers"  # the distribution


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


def requirements(distribution: str = HELPERS) -> list[Requirement]:
    """The packages that a distribution needs (extra None) and those of each extra, in their order.

    Raises:
        importlib.metadata.PackageNotFoundError: the distribution is not installed.
        UserError: the package `packaging` is missing.
    """
    texts = metadata.requires(distribution) or []
    extras = metadata.metadata(distribution).get_all("Provides-Extra") or []
    read = need("packaging.requirements", "hf").Requirement
    needs = []
    for requirement in map(read, texts):
        brought_by = [name for name in (None, *extras) if _applies(requirement, name)]
        if brought_by:
            wanted = ",".join(sorted(map(str, requirement.specifier), reverse=True))
            installed = installed_version(requirement.name)
            needs.append(Requirement(requirement.name, wanted, brought_by[0], installed))
    return needs


def wanted_python(distribution: str = HELPERS) -> str:
    """Such as '>=3.10'."""
    return metadata.metadata(distribution)["Requires-Python"]


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def within(version: str, wanted: str) -> bool:
    """Whether a version lies in a range such as '>=2.11,<3'; 2.11.0rc1 and 2.11+cpu count as 2.11.

    Raises:
        UserError: the package `packaging` is missing.
    """
    release = need("packaging.version", "hf").Version(version).base_version
    return need("packaging.specifiers", "hf").SpecifierSet(wanted).contains(release)


def _applies(requirement, extra: str | None) -> bool:
    """Whether it is needed here, with this extra or without any."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra or ""})
