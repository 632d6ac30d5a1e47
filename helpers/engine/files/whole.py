"""A text file that is there whole or not at all."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write or replace a file, so that a reader, and whoever comes after a crash, never meets half
    of it."""
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
