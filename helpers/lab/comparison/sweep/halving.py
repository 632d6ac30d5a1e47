"""Successive halving: trials that are behind at a rung are stopped, and their time goes to others.

Each trial is compared with those before it, as soon as it comes to a rung: nothing waits for
others.

Source: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning (asynchronous
halving).
"""

import math
from pathlib import Path
from statistics import fmean
from typing import Any

from helpers.lab.comparison.sweep.result import Sweep
from helpers.lab.runs.run import Run, holds_run

REDUCTION = 3  # at a rung the best third goes on
RUNGS = (1 / 9, 1 / 3)  # of the steps
LAST_SHARE = 10  # a loss is the mean over a tenth of the run's steps


class Rungs:
    """Successive halving: at a rung a trial goes on if it is among the best third so far."""

    def __init__(self, found: Sweep, folder: Path, steps: int) -> None:
        self.found, self.folder, self.steps = found, folder, steps
        self.waiting = [max(1, round(share * steps)) for share in RUNGS]

    def behind(self, last: dict[str, Any]) -> bool:
        """Told the last line of metrics: is the trial to be stopped?"""
        while self.waiting and last.get("step", 0) >= self.waiting[0]:
            rung = self.waiting.pop(0)
            own = self._at(self.folder, rung)
            others = [self._at(self.found.run_folder(t.number), rung) for t in self.found.trials]
            so_far = sorted(value for value in [*others, own] if value is not None)
            most = max(1, math.ceil(len(so_far) / REDUCTION))
            if own is None or own > so_far[most - 1]:
                return True
        return False

    def _at(self, folder: Path, rung: int) -> float | None:
        """The mean of the last losses up to a rung."""
        losses = _losses(folder)
        return mean_of_last(losses[:rung], self.steps) if len(losses) >= rung else None


def _losses(folder: Path) -> list[float]:
    if not holds_run(folder):
        return []
    run = Run(folder)
    return list(run.metrics["loss"]) if "loss" in run.metrics else []


def mean_of_last(losses: list[float], steps: int) -> float:
    """The mean over the last tenth of so many steps, one at least."""
    return fmean(losses[-max(1, steps // LAST_SHARE) :])
