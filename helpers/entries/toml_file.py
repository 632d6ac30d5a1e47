"""A TOML file as keys with their values and lines."""

import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.engine.errors import UserError, whole_reason
from helpers.entries.entry import Entry, checked, text_of

TABLE = re.compile(r"\s*\[([\w.\s\"'-]+)\]\s*(#.*)?")
KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")


def read_toml(path: Path) -> list[Entry]:
    """All keys of a file that have a value of their own: not those of other keys.

    Raises:
        UserError: it cannot be read, or is no TOML, or this is Python 3.10 without tomli.
    """
    text = text_of(path)
    try:
        values = _reader(path).loads(text)
        entries = list(_entries(values, "", _lines(text)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no TOML: {whole_reason(error, 120)}") from None
    return checked(path, entries)


def _reader(path: Path) -> ModuleType:
    """Python's own since 3.11, and before it the package that became it."""
    for name in ("tomllib", "tomli"):
        with suppress(ModuleNotFoundError):
            return import_module(name)
    raise UserError(f"{path}: TOML is read by Python 3.11 and newer, or with pip install tomli")


def _entries(values: dict[str, Any], path: str, lines: dict[str, int]) -> Iterator[Entry]:
    for name, value in values.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and value:
            yield from _entries(value, here, lines)
        else:
            yield Entry(here, value, lines.get(here, 0))


def _lines(text: str) -> dict[str, int]:
    """The line of each key that stands at the beginning of one, or of a table by its head."""
    table, found = "", {}
    for number, line in enumerate(text.splitlines(), start=1):
        head, key = TABLE.fullmatch(line), KEY.match(line)
        if head:
            table = _plain(head[1])
            found.setdefault(table, number)
        elif key:
            found.setdefault(f"{table}.{_plain(key[1])}".lstrip("."), number)
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\s\"']", "", name)
