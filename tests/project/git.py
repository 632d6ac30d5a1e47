"""What git knows of the project."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("helpers", "data", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def known_to_git() -> list[str]:
    """The files that a wheel is made from, with those that are not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGED]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).exists()})
