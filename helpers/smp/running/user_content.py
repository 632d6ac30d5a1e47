"""What a script keeps beside a checkpoint: plain values, as JSON; nothing is unpickled again."""

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist

from helpers.engine.errors import UserError
from helpers.engine.ranks import on_all_ranks


def write_content(folder: Path, step: int, content: dict[str, Any]) -> None:
    """On the first rank. Every rank must call it."""
    text = json.dumps(_plain(content), indent=1)
    path = _path(folder, step)
    on_all_ranks(lambda: path.write_text(text, "utf-8") if dist.get_rank() == 0 else None)


def read_content(folder: Path, step: int) -> dict[str, Any]:
    """What was written for a step; empty where there was nothing.

    Raises:
        UserError: the file is broken.
    """
    path = _path(folder, step)
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None


def _path(folder: Path, step: int) -> Path:
    return folder / f"user_content-{step:08d}.json"


def _plain(value: Any) -> Any:
    """The parts of a value that JSON holds as they are."""
    if isinstance(value, dict):
        kept = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not NotImplemented}
    if isinstance(value, (list, tuple)):
        return [item for item in map(_plain, value) if item is not NotImplemented]
    return value if isinstance(value, str | int | float | bool | None) else NotImplemented
