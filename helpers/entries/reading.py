"""The keys of a file, read as its name says."""

from pathlib import Path

from helpers.engine.errors import UserError
from helpers.entries.entry import Entry
from helpers.entries.json_file import read_json
from helpers.entries.toml_file import read_toml
from helpers.entries.words_file import read_words
from helpers.entries.yaml_file import read_yaml

WAYS = {
    ".toml": read_toml,
    ".json": read_json,
    ".yaml": read_yaml,
    ".yml": read_yaml,
    ".sh": read_words,
    ".args": read_words,
    ".txt": read_words,
}


def read_entries(path: Path) -> list[Entry]:
    """All keys of a file.

    Raises:
        UserError: it cannot be read, or its name says no form that is known.
    """
    way = WAYS.get(path.suffix.lower())
    if way is None:
        words = "a Python function's configuration is not run: " if path.suffix == ".py" else ""
        raise UserError(f"{path}: {words}the forms are {', '.join(WAYS)}")
    return way(path)
