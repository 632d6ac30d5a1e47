"""What a run leaves behind: metrics.jsonl, a line a step, and summary.json at the end."""

import errno
import json
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import UserError, cannot_write, is_number
from .whole import replace_text

COUNTED = ("step", "tokens", "samples", "step_s")  # numbers of a line of metrics
HELD = ("metrics.jsonl", "summary.json", "checkpoints")
LOCK = ".lock"
CLAIM_S = 10.0  # so long a run that is started again waits for the end of the one before it
NEXT_TO_NOTHING = 0.25  # added to a loss where losses are compared: from 0 it is far to 0.04
PHASES = ("start", "load", "check", "compile", "train", "evaluate", "save")


def check_folder(out: Path, resume: bool = False) -> None:
    """See that a run can be written to `out`, leaving nothing behind.

    Raises:
        UserError: the folder holds a run already, or cannot be written.
    """
    try:
        if not resume and any((out / name).exists() for name in HELD):
            raise UserError(f"{out} already holds a run: give another --out, or remove it")
        nearest = next((p for p in (out, *out.parents) if p.exists()), Path("."))
        if not nearest.is_dir():
            raise UserError(f"cannot write to {out}: {nearest} is a file")
        probe = nearest / f".write-test-{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(out, error) from None


def claim(out: Path) -> IO[str]:
    """Make a run's folder this process's own, for as long as it lives and the file stays open.

    Raises:
        UserError: another run writes there, or nothing can be written.
    """
    import fcntl  # which Windows lacks, and other systems of this project's have

    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("a")
    except OSError as error:
        raise cannot_write(out, error) from None
    end = time.monotonic() + CLAIM_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > end:
                file.close()
                raise UserError(
                    f"another run writes to {out}: wait for its end, or give another --out"
                ) from None
            time.sleep(0.1)
        except OSError as error:  # of disks that know no locks
            file.close()
            raise UserError(f"{out / LOCK} cannot be locked: {error.strerror}") from None


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Clock:
    """Where the time of a run goes, by phase."""

    phases_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.phases_s[name] += time.perf_counter() - began

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count some seconds of one phase for another."""
        self.phases_s[source] -= seconds
        self.phases_s[target] += seconds


class Metrics:
    """The lines of metrics.jsonl. A rank that does not write keeps them in memory alone.

    A resumed run keeps the lines of the `done` steps before its checkpoint and drops later ones.
    """

    def __init__(self, path: Path | None, done: int = 0) -> None:
        self.lines: list[dict[str, Any]] = []
        self.file = None
        if path is None:
            return
        if done and path.exists():
            self.lines = _lines_up_to(path, done)
        # a crash here must not cost the lines that there are
        replace_text(path, "".join(json.dumps(line) + "\n" for line in self.lines))
        self.file = path.open("a", buffering=1)

    def add(self, line: dict[str, Any]) -> None:
        """Write a step's line; a number that is not finite becomes null, as JSON has no such."""
        line = {key: None if _not_finite(value) else value for key, value in line.items()}
        self.lines.append(line)
        if self.file is None:
            return
        try:
            self.file.write(json.dumps(line) + "\n")
        except OSError:
            with suppress(OSError):
                self.file.close()  # else Python tries once more at its end, and complains
            raise

    def median_rate(self, key: str) -> float | None:
        """The median of `key` per second over the steps after the warm-up, None without steps."""
        lines = self.lines[warmup_steps(len(self.lines)) :]
        if not lines:
            return None
        return statistics.median(line[key] / line["step_s"] for line in lines)

    def close(self) -> None:
        if self.file:
            self.file.close()


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class LossRange:
    """The range that the loss has kept lately, and what lies far above it.

    Source: Hampel 1974, The Influence Curve (median and median deviation, which a spike among the
    recent losses does not move).
    """

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=20)
        self.above = False  # was the step before above it?

    def spike(self, step: int, loss: float) -> str | None:
        """Take note of a step's loss; a warning where it is the first far above those before it.

        Losses are compared by their ratios, as their noise is; those next to zero, which vary by
        any ratio, by their differences.
        """
        recent = [math.log(NEXT_TO_NOTHING + earlier) for earlier in self.recent]
        if math.isfinite(loss):
            self.recent.append(max(0.0, loss))
        if len(recent) < 10:
            return None
        middle = statistics.median(recent)
        deviation = statistics.median(abs(earlier - middle) for earlier in recent)
        limit = math.exp(middle + 8 * max(deviation, 0.02)) - NEXT_TO_NOTHING
        before, self.above = self.above, loss > limit
        if before or not self.above:
            return None
        return (
            f"the loss of step {step}, {loss:.4g}, is far above the "
            f"{math.exp(middle) - NEXT_TO_NOTHING:.4g} that was the median of the {len(recent)} "
            "steps before"
        )


def _lines_up_to(path: Path, step: int) -> list[dict[str, Any]]:
    """The lines of a metrics file up to a step; a line that a crash cut short is not one, nor is
    one that lacks what a summary takes from it."""
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if _is_whole(line) and line["step"] <= step:
                lines.append(line)
    return lines


def _is_whole(line: Any) -> bool:
    if not isinstance(line, dict) or not all(is_number(line.get(name)) for name in COUNTED):
        return False
    return "loss" in line and line["step_s"] > 0


def warmup_steps(steps: int) -> int:
    """Steps left out of every throughput: the first tenth, at least two where there are five."""
    return max(2, steps // 10) if steps >= 5 else 0


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers."""
    from importlib import metadata

    versions_by_package = {"python": sys.version.split()[0]}
    for package in ("torch", "transformers"):
        try:
            versions_by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions_by_package
