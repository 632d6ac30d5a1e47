"""What a checkpoint says of itself, and whether that is still true of its files."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import UserError, cannot_read, check_access, is_finite_number

STEP = re.compile(r"step-(\d{8,})")  # more digits from step 10^8 on
MANIFEST = "manifest.json"
METADATA = ".metadata"  # torch's: where which tensor lies


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_finite_number, value.values()))


# what a manifest must have, of which kind; an earlier version's may lack what may be None
PARTS: dict[str, Callable[[Any], bool]] = {
    "step": lambda value: type(value) is int and 0 <= value < 2**63,
    "plan": lambda value: isinstance(value, dict) and isinstance(value.get("precision"), str),
    "scaler": _numbers,
    "fixed": lambda value: isinstance(value, dict),
    "settings": lambda value: value is None or isinstance(value, dict),
    "fewer_updates": lambda value: value is None or _numbers(value),
}


def list_checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first.

    Raises:
        UserError: the folder may not be read.
    """
    check_access(folder)
    if not folder.is_dir():
        return []
    return sorted((path for path in _entries(folder) if STEP.fullmatch(path.name)), key=step_of)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise cannot_read(folder, error) from None


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name."""
    return int(STEP.fullmatch(checkpoint.name)[1])


def read_manifest(path: Path, fixed: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of itself.

    Raises:
        UserError: it cannot be read or lacks a file (the checkpoint before it is offered), or the
            run differs in a fact that must not change.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        whole = manifest.pop("sha256") == _digest(manifest)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{path} has no readable {MANIFEST}{_before(path)}") from None
    if not whole:
        raise UserError(f"{path / MANIFEST} is damaged: its checksum differs{_before(path)}")
    if wrong := next((name for name, fits in PARTS.items() if not fits(manifest.get(name))), None):
        raise UserError(f"{path / MANIFEST} is damaged: its {wrong} is none{_before(path)}")
    _check_files(path, manifest)
    for fact, value in manifest["fixed"].items():
        if fact in fixed and fixed[fact] != value:
            raise UserError(
                f"the checkpoint was made with {fact} {value}, this run has {fixed[fact]}"
            )
    return manifest


def _check_files(path: Path, manifest: dict[str, Any]) -> None:
    """Every file that the manifest names is there, and no other: what is not named was never
    checked."""
    named = manifest.get("files")
    if not isinstance(named, dict) or METADATA not in named:
        raise UserError(f"{path / MANIFEST} names no {METADATA}{_before(path)}")
    present = {entry.name for entry in _entries(path)} - {MANIFEST}
    if missing := sorted(named.keys() - present):
        raise UserError(f"{path} lacks {missing[0]}{_before(path)}")
    if more := sorted(present - named.keys()):
        raise UserError(
            f"{path} holds {more[0]}, which its {MANIFEST} does not name: take it away, if you "
            "know where it comes from"
        )


def changed_settings(manifest: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """What a resumed run does otherwise than the one that it goes on from, in words."""
    before = manifest.get("settings") or {}
    return [
        f"{name} {settings[name]}, was {before[name]}"
        for name in settings
        if name in before and before[name] != settings[name]
    ]


def as_stored(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as a manifest gives them back: a tuple becomes a list.

    Raises:
        UserError: one is nothing that JSON holds.
    """
    try:
        return json.loads(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"facts of a checkpoint are numbers, texts, and lists of these: {error}"
        ) from None


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest | {"sha256": _digest(manifest)}, indent=1)
    (path / MANIFEST).write_text(text)
    to_disk(path / MANIFEST)


def to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(path: Path, files: dict[str, str]) -> None:
    """See that files of a checkpoint, given with their checksums, are as they were written.

    Raises:
        UserError: one cannot be read, or is damaged; the checkpoint before it is offered.
    """
    for name, digest in files.items():
        try:
            same = sha256(path / name) == digest
        except OSError as error:
            raise cannot_read(path / name, error) from None
        if not same:
            raise UserError(f"{path / name} is damaged: its checksum differs{_before(path)}")


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _before(path: Path) -> str:
    """Words that offer the newest checkpoint before a damaged one."""
    older = [other for other in list_checkpoints(path.parent) if step_of(other) < step_of(path)]
    if not older:
        return "; there is no earlier checkpoint to go on from"
    return f"; the one before it is {older[-1]}"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
