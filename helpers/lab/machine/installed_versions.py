"""The versions that helpers asks for, against those that are installed.

What it asks for is in the metadata that pip writes when it installs helpers, from a repository or a
wheel. A folder that was only copied has none, and of it the packages alone are known, by NEEDED.
"""

import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from helpers.engine.errors import need

HELPERS = "helpers"  # the distribution
NEEDED = {  # by the extra that brings them; each is imported by its own name
    None: ("torch",),
    "hf": ("transformers", "safetensors", "tokenizers", "datasets"),
    "notebooks": (
        *("cloudpickle", "jupyterlab", "ipykernel", "ipywidgets"),
        *("matplotlib", "nbclient", "pandas", "papermill"),
    ),
    "qlora": ("bitsandbytes", "peft"),
}


@dataclass(frozen=True)
class Requirement:
    """A package, the versions that are wanted, the extra that brings it, what is installed."""

    name: str
    wanted: str
    extra: str | None
    installed: str | None

    @property
    def satisfied(self) -> bool:
        if self.installed is None:
            return False
        return not self.wanted or within(self.installed, self.wanted)


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


def needed() -> list[Requirement]:
    """What the notebooks need, where nothing says in which versions."""
    return [
        Requirement(name, "", extra, _found(name))
        for extra, names in NEEDED.items()
        for name in names
    ]


def _found(name: str) -> str | None:
    """Its version, or words where it can be imported and has none."""
    if find_spec(name) is None:
        return None
    return installed_version(name) or "of an unknown version"


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
