"""Tokens on disk, mapped into memory: made once a machine, and held once for all of its ranks.

Every rank sees all of the data. Each would tokenize it by itself and hold it by itself, eight times
on a node of eight GPUs. So the first that comes writes what it made; the others, and later runs,
map that.

    ~/.cache/helpers/tokens/<key>/      the key is of the texts, the tokenizer and the settings
        ids.bin, targets.bin, ...       a field of TokenData each
        facts.json                      its other fields, and a digest of all
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from helpers.engine.errors import need
from helpers.text.encoder_rows import Masking
from helpers.text.readers import Example, Task
from helpers.text.rows import TokenData, tokenize
from helpers.text.tokenizer import Tokenizer

FORMAT = 4  # another number makes all anew
LEAST_CHARACTERS = 8_000_000  # of text; less is tokenized in about a second
MOST = 8  # that stay: the last used
STORED = {
    "ids": torch.int32,
    "targets": torch.int32,
    "offsets": torch.int64,
    "documents": torch.int32,
    "row_labels": torch.int64,
}
OTHERS = ("pad_id", "truncated", "label_names", "label_token_ids", "masking")


def tokenized(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    task: Task,
    seq_len: int,
    labels: Sequence[str] | None = None,
    packed: bool = True,
) -> TokenData:
    """rows.tokenize, of much text only where no rank and no run has done it before.

    Raises:
        UserError: as rows.tokenize.
    """
    settings = (task, seq_len, labels, packed)
    if sum(len(example.text) for example in examples) < LEAST_CHARACTERS:
        return tokenize(examples, tokenizer, *settings)
    folder = cache() / _key(examples, tokenizer, settings)
    with _alone(folder):
        data = _read(folder)
        if data is None:
            data = tokenize(examples, tokenizer, *settings)
            try:
                _write(data, folder)
                data = _read(folder) or data
            except OSError:  # no room, or no place to write
                shutil.rmtree(_draft(folder), ignore_errors=True)
    return data


def cache() -> Path:
    """Where this user's files of tokens lie, by the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "helpers" / "tokens"


def _key(examples: Sequence[Example], tokenizer: Tokenizer, settings: tuple) -> str:
    version = need("tokenizers", "hf").__version__
    named = sorted(tokenizer.named.items())  # which the files beside its own say
    key = hashlib.sha256(f"{FORMAT} {version} {tokenizer.end_id} {named} {settings!r}".encode())
    key.update(tokenizer.backend.to_str().encode())
    for text, label, _ in examples:
        for part in (text, label or ""):
            key.update(f"{len(part)} ".encode())
            key.update(part.encode())
    return key.hexdigest()[:24]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; where no file can be made, all at once."""
    lock = None
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _write(data: TokenData, folder: Path) -> None:
    """Whole under its name, or not there."""
    draft = _draft(folder)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for name, dtype in STORED.items():
        values = getattr(data, name)
        if values is not None and not (name == "targets" and values is data.ids):
            values.to(dtype).numpy().tofile(draft / f"{name}.bin")
    (draft / "facts.json").write_text(json.dumps(_others(data) | {"digest": _digest(data)}))
    _note_use(draft)
    shutil.rmtree(folder, ignore_errors=True)  # a damaged one
    draft.rename(folder)
    by_use = sorted(cache().glob("*/facts.json"), key=lambda path: path.stat().st_mtime_ns)
    for facts_of_old in by_use[:-MOST]:
        shutil.rmtree(facts_of_old.parent, ignore_errors=True)


def _draft(folder: Path) -> Path:
    return folder.with_suffix(".partial")


def _read(folder: Path) -> TokenData | None:
    """What is there; None where nothing is, or what is was damaged."""
    try:
        facts = json.loads((folder / "facts.json").read_text())
        digest = facts.pop("digest")
        stored = {name: _mapped(folder / f"{name}.bin", dtype) for name, dtype in STORED.items()}
        stored["targets"] = stored["ids"] if stored["targets"] is None else stored["targets"]
        facts["label_names"] = tuple(facts["label_names"])
        if facts["masking"]:
            mask, special, others = facts["masking"]
            facts["masking"] = Masking(mask, tuple(special), tuple(others))
        data = TokenData(**stored, **facts)
        with suppress(OSError):  # may be read and not written
            _note_use(folder)
        return data if _digest(data) == digest else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        return None


def _note_use(folder: Path) -> None:
    """By a finer clock than files have by themselves."""
    os.utime(folder / "facts.json", ns=(time.time_ns(),) * 2)


def _others(data: TokenData) -> dict[str, Any]:
    return {name: getattr(data, name) for name in OTHERS}


def _digest(data: TokenData) -> str:
    others = json.dumps(list(_others(data).values()))
    return hashlib.sha256(f"{data.digest} {others}".encode()).hexdigest()


def _mapped(path: Path, dtype: torch.dtype) -> torch.Tensor | None:
    if not path.is_file():
        return None
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype)
