"""What a stage finds: checks that hold or not, and figures, written as one record."""

import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")


class Report:
    """Of one stage.

    Attributes:
        tiny: small sizes are wanted.
        first: does this process speak for all?
        figures: by name.
    """

    def __init__(self, stage: str, tiny: bool, first: bool = True) -> None:
        self.stage, self.tiny, self.first = stage, tiny, first
        self.checks: dict[str, dict[str, Any]] = {}
        self.figures: dict[str, Any] = {}
        self.began = time.perf_counter()

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks.values())

    def check(self, name: str, holds: bool, found: str = "") -> None:
        self.checks[name] = {"ok": bool(holds), "found": found}
        self._say(f"{'  ' if holds else 'FAILED '}{name}: {found}")

    def figure(self, name: str, value: Any) -> None:
        self.figures[name] = value
        self._say(f"  {name} = {value}")

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """What raises is a check that failed; the next ones still run."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.check(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")

    def write(self, path: Path) -> None:
        if not self.first:
            return
        commit = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        record = {
            "stage": self.stage,
            "ok": self.ok,
            "tiny": self.tiny,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "device": torch.cuda.get_device_name() if CUDA else "cpu",
            "versions": {name: version(name) for name in PACKAGES},
            "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip(),
            "command": " ".join(["python", *sys.argv]).replace(f"{ROOT}/", ""),
            "seconds": round(time.perf_counter() - self.began, 1),
            "checks": self.checks,
            "figures": self.figures,
        }
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def _say(self, line: str) -> None:
        if self.first:
            print(line, flush=True)


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def forget_peak() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
    return torch.cuda.max_memory_allocated() if CUDA else None


def one_by_one(step: Callable[[], Any], count: int, warm: int = 2) -> tuple[list[float], list[Any]]:
    """Seconds of steps with the device idle before and after each, and what they returned."""
    seconds, results = [], []
    for _ in range(count + warm):
        sync()
        began = time.perf_counter()
        results.append(step())
        sync()
        seconds.append(time.perf_counter() - began)
    return seconds[warm:], results[warm:]


def in_a_row(step: Callable[[], Any], count: int) -> float:
    """Seconds a step, with nothing of ours between them."""
    sync()
    began = time.perf_counter()
    for _ in range(count):
        step()
    sync()
    return (time.perf_counter() - began) / count
