"""One key of a file; how a file's text is fetched, and what a file may be at most."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError

MOST_BYTES = 2**20
MOST_KEYS = 5000
LONGEST_PATH = 500


@dataclass(frozen=True)
class Entry:
    """A key by its path, `model.optim.lr`, its value, and its line."""

    path: str
    value: Any
    line: int


def text_of(path: Path) -> str:
    """A file's text.

    Raises:
        UserError: it cannot be read, is too large, or is no text.
    """
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is no file")
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is larger than any recipe or configuration")
        return path.read_text(encoding="utf-8-sig")  # some editors begin with a mark of UTF-8
    except OSError as error:
        raise UserError(f"{path!s:.200} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text: it is not written in UTF-8") from None


def checked(path: Path, entries: list[Entry]) -> list[Entry]:
    """The entries, where they are not too many and have paths that can be read.

    Raises:
        UserError: they are not.
    """
    if len(entries) > MOST_KEYS:
        raise UserError(f"{path} has more keys than any recipe or configuration")
    if any(len(entry.path) > LONGEST_PATH for entry in entries):
        raise UserError(f"{path}: keys are nested too deeply")
    return entries
