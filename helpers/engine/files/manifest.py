"""What a checkpoint says of itself, and whether that is still true of its files."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..errors import UserError

STEP = re.compile(r"step-(\d{8})")
MANIFEST = "manifest.json"


def list_checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if STEP.fullmatch(path.name))


def read_manifest(path: Path, fixed: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Raises:
        UserError: it cannot be read or lacks a file (the checkpoint before it is offered), or the
            run differs in a fact that must not change.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        whole = manifest.pop("sha256") == _digest(manifest)
    except (OSError, ValueError, KeyError, AttributeError):
        raise UserError(f"{path} has no readable {MANIFEST}{_before(path)}") from None
    if not whole:
        raise UserError(f"{path / MANIFEST} is damaged: its checksum differs{_before(path)}")
    for name in manifest["files"]:
        if not (path / name).is_file():
            raise UserError(f"{path} lacks {name}{_before(path)}")
    for fact, value in manifest["fixed"].items():
        if fact in fixed and fixed[fact] != value:
            raise UserError(
                f"the checkpoint was made with {fact} {value}, this run has {fixed[fact]}"
            )
    return manifest


def changed_settings(manifest: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """What a resumed run does otherwise than the one that it goes on from, in words."""
    before = manifest.get("settings", {})
    return [
        f"{name} {settings[name]}, was {before[name]}"
        for name in settings
        if name in before and before[name] != settings[name]
    ]


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest | {"sha256": _digest(manifest)}, indent=1)
    (path / MANIFEST).write_text(text)


def verify(path: Path, files: dict[str, str]) -> None:
    """See that files of a checkpoint, given with their checksums, are as they were written.

    Raises:
        UserError: one is damaged; the checkpoint before it is offered.
    """
    for name, digest in files.items():
        if sha256(path / name) != digest:
            raise UserError(f"{path / name} is damaged: its checksum differs{_before(path)}")


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _before(path: Path) -> str:
    """Words that offer the newest checkpoint before a damaged one."""
    older = [other for other in list_checkpoints(path.parent) if other.name < path.name]
    return f"; the one before it is {older[-1]}" if older else "; there is none before it"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
