"""The trials of a sweep, one after another: what is tried, its run, and what is kept of it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.lab.comparison.sweep.bracket import next_share
from helpers.lab.comparison.sweep.halving import Rungs, mean_of_last
from helpers.lab.comparison.sweep.result import DONE, FAILED, STOPPED, Sweep, Trial
from helpers.lab.comparison.sweep.space import Line, Space, grid, line_of, suggest
from helpers.lab.launch.launch import launch
from helpers.lab.runs.failure_report import RunFailed
from helpers.lab.runs.run import Run, load_run

STUDY = "study.log"


class Runner:
    """Runs the trials of one sweep."""

    def __init__(
        self,
        found: Sweep,
        space: Space,
        script: str | Path,
        flags: Mapping[str, Any],
        show: bool,
    ) -> None:
        self.found, self.space, self.script, self.flags = found, space, script, dict(flags)
        self.show = show
        self.options: dict[str, Any] = {}

    def run(self, optuna: Any, trials: int) -> None:
        facts = self.found.facts
        self.found.write()
        backend = optuna.storages.journal.JournalFileBackend(str(self.found.folder / STUDY))
        study = optuna.create_study(
            study_name="sweep",
            storage=optuna.storages.JournalStorage(backend),
            direction=facts["direction"],
            pruner=optuna.pruners.NopPruner(),  # halving.py stops trials
            load_if_exists=True,
        )
        points = grid(self.space, trials) if facts["sampler"] == "grid" else []
        if points and not study.trials:
            for point in points:
                study.enqueue_trial(point)
        wanted = len(points) or trials
        while len(self.found.trials) < wanted:
            number = len(self.found.trials)
            study.sampler = self._sampler(optuna, facts["seed"] + number)
            if self._line and not any(one.number == number for one in study.trials):
                study.enqueue_trial(self._searched(self._line))
            trial = self._next(optuna, study, number)
            self._one(study, trial)

    @property
    def _line(self) -> Line | None:
        """The one flag's values as a line, where its lowest place is searched."""
        alone = len(self.space) == 1 and self.found.facts["sampler"] == "auto"
        return line_of(*self.space.values()) if alone else None

    def _searched(self, line: Line) -> dict[str, Any]:
        """What the search of the lowest place tries next."""
        (name,) = self.space
        sign = -1 if self.found.maximizes else 1
        known = [
            (line.share_of(one.flags[name]), sign * one.value if one.state == DONE else math.inf)
            for one in self.found.trials
        ]
        return {
            name: line.untried(next_share(known), [one.flags[name] for one in self.found.trials])
        }

    def _sampler(self, optuna: Any, seed: int) -> Any:
        samplers = optuna.samplers
        if self.found.facts["sampler"] in ("auto", "tpe"):
            return samplers.TPESampler(seed=seed, n_startup_trials=5)
        return samplers.RandomSampler(seed=seed)

    def _next(self, optuna: Any, study: Any, number: int) -> Any:
        """The trial with this number: the one that was killed, or a new one."""
        begun = [one for one in study.trials if one.number == number]
        if begun and begun[0].state == optuna.trial.TrialState.RUNNING:
            return optuna.trial.Trial(study, begun[0]._trial_id)
        return study.ask()

    def _one(self, study: Any, trial: Any) -> None:
        chosen = suggest(trial, self.space)
        one = Trial(trial.number, chosen)
        folder = self.found.run_folder(trial.number)
        if self.show:
            words = ", ".join(
                f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in chosen.items()
            )
            print(f"trial {trial.number}: {words} ...", end=" ", flush=True)
        rungs = (
            Rungs(self.found, folder, self.flags["steps"]) if self.found.facts["halving"] else None
        )
        seconds = _seconds(folder)
        try:
            run = launch(
                self.script,
                out=folder,
                show=False,
                until=rungs.behind if rungs else None,
                **self.options,
                **{**self.flags, **chosen},
            )
            self._measure(one, run)
        except RunFailed as failure:
            if not self.found.trials:
                raise  # what fails at once is a mistake of the call, and no trial would do better
            one.state, one.words = FAILED, failure.message.splitlines()[0]
            run = load_run(folder) if (folder / "launch.json").exists() else None
        one.seconds = seconds + (run.wall_s or 0.0 if run else 0.0)
        _keep_seconds(folder, one.seconds)
        self._tell(study, trial, one)
        self.found.trials.append(one)
        self.found.write()
        if self.show:
            said = one.words if one.value is None else f"{self.found.objective} {one.value:.4g}"
            print(f"{one.state}, {said}, {one.seconds:.0f} s", flush=True)

    def _measure(self, one: Trial, run: Run) -> None:
        """The trial's state and objective, from its run."""
        losses = list(run.metrics["loss"])
        one.steps = len(losses)
        one.state = DONE if run.state == "done" else STOPPED
        if one.state == STOPPED or self.found.objective == "final_loss":
            one.value = mean_of_last(losses, self.flags["steps"])
        else:
            scores = run.summary.get("eval") or {}
            one.value = scores.get(self.found.objective.removeprefix("eval_"))
        if one.value is None or not math.isfinite(one.value):
            one.state, one.value, one.words = FAILED, None, "its objective is not finite"

    def _tell(self, study: Any, trial: Any, one: Trial) -> None:
        """Optuna learns of it; of a stopped or failed one that it was bad."""
        worst = -math.inf if self.found.maximizes else math.inf
        study.tell(trial.number, one.value if one.state == DONE else worst)


def _seconds(folder: Path) -> float:
    """What earlier starts of a trial took: a killed launcher leaves no time, its run's files do."""
    path = folder / "seconds"
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0


def _keep_seconds(folder: Path, seconds: float) -> None:
    if folder.is_dir():
        (folder / "seconds").write_text(f"{seconds}\n")
