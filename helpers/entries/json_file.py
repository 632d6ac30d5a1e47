"""A JSON file as keys with their values and lines."""

import json
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.entries.entry import Entry, text_of
from helpers.entries.yaml_file import of_yaml


def read_json(path: Path) -> list[Entry]:
    """All keys of a file that have a value of their own: not those of other keys.

    JSON is YAML but for tabs between its words, so that the lines come from there.

    Raises:
        UserError: it cannot be read, or is no object.
    """
    text = text_of(path)
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {str(error)[:120]}") from None
    return of_yaml(path, text.replace("\t", "    "))
