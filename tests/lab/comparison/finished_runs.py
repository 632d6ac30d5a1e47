"""The files that a finished run leaves, written without training: what reads them is tested."""

import json
import os
from pathlib import Path
from typing import Any

STEP_S = 0.5
SETTINGS = {"data": "reviews.tsv", "seed": 0, "lr": 1e-3, "seq_len": 64}
PHASES = {
    "start": 4.0,
    "load": 1.5,
    "check": 0.5,
    "compile": 0.0,
    "train": 10.0,
    "evaluate": 1.0,
    "save": 0.5,
}


def write_run(
    folder: Path,
    *,
    steps: int = 40,
    batch: int = 8,
    step_s: float = STEP_S,
    compile_s: float = 0.0,
    check_s: float = 0.0,
    first_step_s: float | None = None,
    loss: float = 3.0,
    falls: float = 0.002,
    last: int | None = None,
    ended: float | None = None,
    plan: dict | None = None,
    dataset_samples: int | None = None,
    **settings: Any,
) -> Path:
    """A run by its work: its loss falls by `falls` a sample, its last step has `last` samples."""
    took = [first_step_s or step_s] + [step_s] * (steps - 1)
    lines, seen = [], 0
    for samples, seconds in zip([batch] * (steps - 1) + [last or batch], took):
        line = {"loss": loss - falls * seen, "samples": samples}
        lines.append({**line, "tokens": 10 * samples, "step_s": seconds})
        seen += samples
    phases = {"start": 3.0, "load": 1.0, "check": check_s}
    phases |= {"compile": compile_s, "train": sum(took), "evaluate": 1.0, "save": 0.0}
    summary = {
        "plan": {"tp": 1, "compile": compile_s > 0} | (plan or {}),
        "model": "gpt2-tiny",
        "phases_s": phases,
        "settings": {**SETTINGS, **settings},
    }
    if dataset_samples:
        summary["dataset_samples"] = dataset_samples
    # 2 s before the ranks, and 1 s of the end
    _write(folder, lines, summary, wall_s=sum(phases.values()) + 3.0)
    if ended is not None:
        os.utime(folder / "summary.json", (ended, ended))
    return folder


def write_speeds(
    folder: Path,
    speeds: list[float | None],
    *,
    losses: list[float | None] | None = None,
    launch: bool = True,
    **summary: Any,
) -> Path:
    """A run by the tokens a second of its steps, of 50,000 tokens each, in 20 s; its loss falls by
    0.1 a step unless `losses` are given. Without `launch` it was started by hand."""
    losses = losses or [3.0 - step / 10 for step in range(len(speeds))]
    lines = [
        {"loss": loss, "tokens": 50_000, "tokens_per_s": speed}
        for loss, speed in zip(losses, speeds, strict=True)
    ]
    return _write(folder, lines, {"phases_s": PHASES, **summary}, wall_s=20.0 if launch else None)


def _write(
    folder: Path, lines: list[dict[str, Any]], summary: dict[str, Any], wall_s: float | None
) -> Path:
    folder.mkdir(parents=True)
    rows = [json.dumps({"step": step, **line}) + "\n" for step, line in enumerate(lines, 1)]
    (folder / "metrics.jsonl").write_text("".join(rows))
    known = {"device": "cpu", "status": "done", "final_loss": lines[-1]["loss"]}
    (folder / "summary.json").write_text(json.dumps(known | summary))
    if wall_s is not None:
        launched = {"command": "", "state": "done", "wall_s": wall_s, "before_ranks_s": 2.0}
        (folder / "launch.json").write_text(json.dumps(launched))
    return folder
