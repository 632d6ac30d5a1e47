"""The last cell of a notebook: what ran, on what, and what came out, as one JSON file."""

import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.engine.files.run_record import versions
from helpers.engine.files.whole import replace_text
from helpers.lab.notebook.preflight import Preflight
from helpers.lab.paths import ROOT, shown

RENDERED = "rendered"  # tag of the cell that the rendering script writes


def save_record(folder: str | Path, plan: Preflight, results: dict[str, Any]) -> dict[str, Any]:
    """Write `record.json` into a notebook's result folder, and return what it holds.

    Args:
        folder: relative to the project root.
        plan: what the preflight found and chose.
        results: the notebook's own numbers.
    """
    notebook = _notebook(plan.notebook)
    record = {
        "notebook": notebook.stem if notebook else plan.notebook,
        "source_sha256": source_hash(notebook) if notebook else None,
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": plan.machine.words,
        "profile": plan.profile.name,
        "profile_reason": plan.reason,
        "not_shown": list(plan.not_shown),
        "results": results,
    }
    path = ROOT / folder / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(record, indent=1, default=_plain) + "\n")
    print(f"written: {shown(path)}")
    return record


def source_hash(notebook: Path) -> str:
    """SHA-256 of what a notebook's outputs depend on and a reader can change: the kind, tags and
    text of each cell but the rendering script's own, and the checksums of the bundled data."""
    cells = [
        [cell["cell_type"], sorted(_tags(cell)), "".join(cell["source"])]
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if RENDERED not in _tags(cell)
    ]
    sums = (ROOT / "data" / "SHA256SUMS").read_text(encoding="utf-8")
    return hashlib.sha256(json.dumps([cells, sums]).encode()).hexdigest()


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell["metadata"].get("tags", [])


def _notebook(number: int) -> Path | None:
    return next(iter(sorted((ROOT / "notebooks").glob(f"{number}_*.ipynb"))), None)


def _plain(value: Any) -> Any:
    """Numbers of numpy and pandas as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
