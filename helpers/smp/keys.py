"""Every key of the SageMaker model parallel library: the rows of keys_v1.json and keys_v2.json.

    keys(version=1)["microbatches"].default        # 1
    elsewhere()["processes_per_host"]              # where a name belongs that is no key

configuration.py reads configurations by them.
"""

from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, is_number
from helpers.tables import read_table

HERE = Path(__file__).parent
KEYS = {1: HERE / "keys_v1.json", 2: HERE / "keys_v2.json"}
ELSEWHERE = HERE / "elsewhere.csv"
KINDS = ("whole", "number", "flag", "word", "choice")


@dataclass(frozen=True)
class Key:
    """What is known of a key.

    kind: `whole` (a whole number from `least`), `number` (from 0 to `most`), `flag`, `word`, or
        `choice`, one of the words in `choices`.
    default: the library's own.
    became: what it is here, where it is kept. note: why it does nothing here; such a key is left
        out.
    only: the one value that can be kept, where there is one; `why` not the others, and the nearest.
    """

    name: str
    kind: str
    date: str
    source: str
    choices: tuple[str, ...] = ()
    default: Any = None
    least: int = 1
    most: float = inf
    became: str = ""
    note: str = ""
    only: Any = None
    why: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"kind is one of {', '.join(KINDS)}, not {self.kind!r}")
        if (self.kind == "choice") != bool(self.choices):
            raise UserError("choices are those of the kind 'choice', and of no other")
        if self.only is not None and not self.why:
            raise UserError("a key with one value that can be kept says why not the others")
        if bool(self.became) == bool(self.note or self.only is not None):
            raise UserError("a key became something, or has a note or one value that is kept")
        if self.default is not None and self.wants(self.default):
            raise UserError(f"default must be {self.wants(self.default)}, not {self.default!r}")

    def wants(self, value: Any) -> str | None:
        """What the value should be, if it is not."""
        if self.kind == "whole":
            return wants_whole(value, self.least)
        if self.kind == "number":
            fits = is_number(value) and 0 <= value <= self.most
            limit = f" and at most {self.most:g}" if self.most < inf else ""
            return None if fits else f"a number of at least 0{limit}"
        if self.kind == "flag":
            return None if isinstance(value, bool) else "True or False"
        if self.kind == "word":
            return None if isinstance(value, str) else "a word"
        return None if value in self.choices else f"one of {', '.join(self.choices)}"


@dataclass(frozen=True)
class Elsewhere:
    """A name that is no key, and the place where it belongs.

    nothing: why it does nothing here, where published jobs have it among the keys all the same.
    """

    name: str
    place: str
    date: str
    source: str
    nothing: str = ""


@cache
def keys(version: int, path: Path | None = None) -> dict[str, Key]:
    """The keys of version 1 or 2, by name, of its file or of another one with its fields.

    Raises:
        UserError: a row is wrong, in one line that names the file and the row.
    """
    return {key.name: key for key in read_table(path or KEYS[version], Key)}


@cache
def elsewhere(path: Path = ELSEWHERE) -> dict[str, str]:
    """The place of each name in elsewhere.csv, or in another file with its columns."""
    return {row.name: row.place for row in read_table(path, Elsewhere)}


@cache
def does_nothing() -> dict[str, str]:
    """Of those names the ones that are left out, each with the reason."""
    return {row.name: row.nothing for row in read_table(ELSEWHERE, Elsewhere) if row.nothing}


def wants_whole(value: Any, least: int) -> str | None:
    """What the value should be, if it is no whole number from `least` on."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    return None if fits else f"a whole number of at least {least}"
