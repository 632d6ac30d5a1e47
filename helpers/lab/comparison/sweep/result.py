"""What a sweep has found: the trials as a table, the best of them, and a sentence."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, as_path
from helpers.engine.files.whole import replace_text
from helpers.lab.figures.tables import number, table_of
from helpers.lab.paths import ROOT, shown
from helpers.lab.runs.reading import is_size
from helpers.tables import make_row

if TYPE_CHECKING:
    import pandas as pd

FILE = "sweep.json"
RUNNING, DONE, STOPPED, FAILED = "running", "done", "stopped", "failed"


@dataclass
class Trial:
    """One run of a sweep.

    state: running, or killed with the sweep; done; stopped at a rung, where it was behind; or
        failed, as after it had diverged.
    value: the objective; of a stopped one as it was then, None of a failed one.
    seconds: of the machine, since the trial was started last; none where an earlier trial had the
        same settings, which `words` says.
    """

    number: int
    flags: dict[str, Any]
    state: str = RUNNING
    value: float | None = None
    steps: int = 0
    seconds: float = 0.0
    words: str = ""


@dataclass
class Sweep:
    """A sweep, finished or not. `folder` holds all of it."""

    folder: Path
    facts: dict[str, Any]
    trials: list[Trial] = field(default_factory=list)

    @property
    def objective(self) -> str:
        return self.facts["objective"]

    @property
    def maximizes(self) -> bool:
        return self.facts["direction"] == "maximize"

    @property
    def finished(self) -> list[Trial]:
        """Those that took all their steps."""
        return [trial for trial in self.trials if trial.state == DONE]

    @property
    def best(self) -> Trial:
        """The trial with the best objective of those that took all their steps.

        Raises:
            UserError: there is none yet.
        """
        if not self.finished:
            raise UserError(f"no trial of {shown(self.folder)} has finished")
        sign = -1 if self.maximizes else 1
        return min(self.finished, key=lambda trial: sign * trial.value)

    def run_folder(self, number: int) -> Path:
        return self.folder / f"trial-{number:03d}"

    @property
    def table(self) -> "pd.DataFrame":
        """A row a trial, in the order in which they were tried; `cost` where a price is known."""
        price = self.facts.get("price_per_hour")
        rows = {}
        for trial in self.trials:
            row = {**trial.flags, self.objective: trial.value, "state": trial.state}
            row |= {"steps": trial.steps, "seconds": trial.seconds}
            if price is not None:
                row["cost"] = trial.seconds / 3600 * price
            rows[trial.number] = row
        return table_of(rows, "trial")

    @property
    def sentence(self) -> str:
        """What the table says."""
        if not self.finished:
            return "No trial has finished yet."
        best = self.best
        flags = ", ".join(f"{name} {_shown(value)}" for name, value in best.flags.items())
        seconds = sum(trial.seconds for trial in self.trials)
        words = (
            f"Of {len(self.trials)} trials number {best.number} is the best, with {flags}: "
            f"{self.objective} {number(best.value)}."
        )
        stopped = sum(trial.state == STOPPED for trial in self.trials)
        words += f" {stopped} were stopped on the way." if stopped else ""
        price = self.facts.get("price_per_hour")
        if price is None:
            return f"{words} All of them took {seconds:.0f} s."
        return f"{words} All of them took {seconds:.0f} s and cost ${seconds / 3600 * price:.3g}."

    def write(self) -> None:
        """To the folder's sweep.json, whole or not at all."""
        content = {**self.facts, "trials": [asdict(trial) for trial in self.trials]}
        replace_text(self.folder / FILE, json.dumps(content, indent=1) + "\n")


def load_sweep(folder: str | Path) -> Sweep:
    """The sweep in a folder, relative to the project root unless absolute.

    Raises:
        UserError: there is none, or its file is broken.
    """
    path = ROOT / as_path(folder) / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        trials = [make_row(Trial, one, "a trial") for one in content.pop("trials")]
        _check(content, trials)
    except FileNotFoundError:
        raise UserError(f"{shown(ROOT / folder)} holds no sweep") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{shown(path)} cannot be read: {error}") from None
    return Sweep(ROOT / folder, content, trials)


def _check(facts: dict[str, Any], trials: list[Trial]) -> None:
    """Raise a ValueError if a sweep's table and sentence cannot be of these."""
    if not all(isinstance(facts.get(name), str) for name in ("objective", "direction")):
        raise ValueError("it does not say its objective and direction")
    sizes = [facts.get("price_per_hour"), *(trial.seconds for trial in trials)]
    if not all(map(is_size, sizes)):
        raise ValueError("a price or a trial's seconds is no number of 0 or more")
    values = [trial.value for trial in trials if trial.state == DONE]
    if None in values or not all(map(math.isfinite, values)):
        raise ValueError("a trial that is done has no finite value")


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, float) and math.isfinite(value) else str(value)
