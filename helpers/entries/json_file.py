"""A JSON file as keys with their values and lines."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.entries.entry import Entry, text_of
from helpers.entries.yaml_file import of_yaml


def read_json(path: Path) -> list[Entry]:
    """All keys of a file that have a value of their own: not those of other keys.

    JSON is YAML but for tabs between its words, so that the lines come from there; the values do
    not, for YAML reads NaN and halves of a character otherwise.

    Raises:
        UserError: it cannot be read, or is no object.
    """
    text = text_of(path)
    try:
        found = json.loads(text)
        values = dict(_values(found)) if isinstance(found, dict) else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {str(error)[:120]}") from None
    return of_yaml(path, text.replace("\t", "    "), over=values)


def _values(found: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict) and value:
            yield from _values(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
