"""What a run has come to: followed while it goes, shown in the panel, written to launch.json."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from helpers.engine.errors import UserError, is_number
from helpers.engine.files.whole import replace_text
from helpers.lab.launch.command import Job
from helpers.lab.launch.live_panel import LINES_SHOWN, Panel, View
from helpers.lab.launch.output_reader import Metrics
from helpers.lab.launch.processes import Processes
from helpers.lab.paths import shorten, shown
from helpers.lab.runs.failure_report import attempts
from helpers.lab.runs.reading import read_object

ENDED, LATE, ENOUGH = "ended", "late", "enough"
Until = Callable[[dict[str, Any]], bool]  # of the last line of metrics: is it enough?
QUIET_S = 60.0  # without a line or a step for so long, say that a rank may be waiting


class Progress:
    """One run's, from before its first process to its last word."""

    def __init__(self, job: Job, processes: Processes, panel: Panel) -> None:
        self._job = job
        self._processes = processes
        self._panel = panel
        self._metrics = Metrics(job.out / "metrics.jsonl")
        self._write("running")

    def last_step(self) -> int | None:
        self._metrics.read()
        return self._metrics.last.get("step")

    def follow(self, timeout_s: float | None, until: Until | None = None) -> str:
        """Show the run until it has ENDED, its time is over (LATE), or `until` says so (ENOUGH)."""
        while not self._processes.end_within(0.1):
            if timeout_s is not None and self._processes.elapsed_s > timeout_s:
                return LATE
            self._metrics.read()
            self._panel.update(self._view("running", self._quiet_words()))
            if until is not None and until(self._metrics.last):
                return ENOUGH
        return ENDED

    def finish(self, state: str, note: str = "") -> None:
        """Write and show how it ended: done, failed or stopped."""
        self._metrics.read()
        with suppress(UserError):  # the verdict counts, though a full disk takes no record of it
            self._write(
                state,
                wall_s=round(self._processes.elapsed_s, 3),
                before_ranks_s=self._before_ranks_s(),
            )
        self._panel.finish(self._view(state, note))

    def _quiet_words(self) -> str:
        output = self._processes.output
        if output.error:
            return output.error
        heard_s = max(output.last_heard_s, self._metrics.last_heard_s)
        if time.monotonic() - heard_s < QUIET_S:
            return ""
        return f"no output for {QUIET_S:.0f} s: a rank may be waiting in a collective"

    def _view(self, state: str, note: str) -> View:
        # of a failed run the last lines are the peers' complaints; the error that follows says why
        lines = [] if state == "failed" else self._processes.last_lines(LINES_SHOWN)
        return View(
            command=self._job.command,
            logs=shown(self._job.logs),
            state=state,
            elapsed_s=self._processes.elapsed_s,
            metrics=self._metrics.last,
            steps=self._job.steps,
            lines=tuple(map(shorten, lines)),
            note=note,
            median_tokens_per_s=self._median_tokens_per_s() if state == "done" else None,
        )

    def _median_tokens_per_s(self) -> float | None:
        """Of the whole run, as its summary has it; None where it has none."""
        try:
            found = read_object(self._job.out / "summary.json").get("tokens_per_s")
        except UserError:
            return None
        return found if is_number(found) else None

    def _before_ranks_s(self) -> float | None:
        """torchrun makes the ranks' log folders right before it starts the ranks."""
        started = attempts(self._job.logs)
        if not started:
            return None
        return round(max(0.0, started[0].stat().st_mtime - self._processes.started_at), 3)

    def _write(self, state: str, **measured: float | None) -> None:
        record = {
            "command": self._job.command,
            "flags": self._job.flags,
            "nproc": self._job.nproc,
            "nodes": self._job.nodes,
            "state": state,
            **measured,
        }
        try:
            replace_text(self._job.out / "launch.json", json.dumps(record, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"cannot write in {shown(self._job.out)}: {error.strerror}") from None
