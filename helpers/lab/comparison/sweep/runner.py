"""The trials of a sweep, one after another: what is tried, its run, and what is kept of it."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from helpers.lab.comparison.sweep.result import DONE, FAILED, RUNNING, STOPPED, Sweep, Trial
from helpers.lab.comparison.sweep.space import Space, distributions, grid
from helpers.lab.launch.launch import launch
from helpers.lab.launch.progress import Until
from helpers.lab.runs.failure_report import RunFailed
from helpers.lab.runs.run import Run, load_run

AT_FIRST = 5  # trials at random, before a sampler has anything to learn from
REDUCTION = 3  # at a rung the best third goes on
FIRST_RUNG = 9  # the first rung is at this part of the steps, the second at REDUCTION times as many
LAST_SHARE = 10  # a loss is the mean over this part of the steps, the last ones


class Runner:
    """Runs the trials of one sweep.

    Args:
        flags: the script's own, the same in every trial. options: of `launch`.
    """

    def __init__(
        self,
        found: Sweep,
        space: Space,
        script: str | Path,
        flags: Mapping[str, Any],
        options: Mapping[str, Any],
        show: bool,
    ) -> None:
        self.found, self.space, self.script = found, space, script
        self.flags, self.options, self.show = dict(flags), dict(options), show
        first = max(1, self.flags["steps"] // FIRST_RUNG)
        self.rungs = [first, first * REDUCTION] if found.facts["halving"] else []

    def run(self, optuna: Any, trials: int) -> None:
        """Optuna is told again of what an earlier start has tried, and then what is new."""
        facts, known = self.found.facts, self.found.trials
        points = grid(self.space, trials) if facts["sampler"] == "grid" else []
        study = optuna.create_study(direction=facts["direction"], pruner=self._pruner(optuna))
        kinds = distributions(optuna, self.space)
        for number in range(len(points) or trials):
            given = known[number].flags if number < len(known) else None
            given = points[number] if given is None and points else given
            if given is not None:
                study.enqueue_trial(given)
            study.sampler = self._sampler(optuna, facts["seed"] + number)
            trial = study.ask(kinds)
            if number == len(known):
                known.append(Trial(number, dict(trial.params)))
            self._take(trial, known[number])
            study.tell(trial, self._told(known[number]))

    def _sampler(self, optuna: Any, seed: int) -> Any:
        """From a seed of the trial's own, so that a killed sweep chooses as it would have."""
        if self.found.facts["sampler"] == "tpe":
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=AT_FIRST)
        return optuna.samplers.RandomSampler(seed=seed)

    def _pruner(self, optuna: Any) -> Any:
        if not self.rungs:
            return optuna.pruners.NopPruner()
        return optuna.pruners.SuccessiveHalvingPruner(
            min_resource=self.rungs[0], reduction_factor=REDUCTION
        )

    def _take(self, trial: Any, one: Trial) -> None:
        """Run a trial, unless it was run before or its settings were."""
        behind = self._behind(trial, one)
        if one.state != RUNNING:
            behind({"step": one.steps})  # a later trial is compared with this one
            return
        earlier = self.found.trials[: one.number]
        same = next((other for other in earlier if other.flags == one.flags), None)
        self._say(f"trial {one.number}: {_shown(one.flags)} ...", end=" ")
        if same is not None:
            one.state, one.value, one.steps = same.state, same.value, same.steps
            one.words = f"the settings of trial {same.number}"
        else:
            self.found.write()  # so that a killed trial goes on with these settings
            self._launch(one, behind)
        self.found.write()
        value = "" if one.value is None else f" {self.found.objective} {one.value:.4g}"
        self._say(", ".join(filter(None, [f"{one.state}{value}", one.words])))

    def _launch(self, one: Trial, behind: Until) -> None:
        folder = self.found.run_folder(one.number)
        flags = {**self.flags, **one.flags}
        try:
            run = launch(self.script, out=folder, show=False, until=behind, **self.options, **flags)
            self._measure(one, run)
        except RunFailed as failure:
            if not one.number:
                raise  # what fails at once is a mistake of the call, and no trial would do better
            one.state, one.words = FAILED, failure.message.splitlines()[0]
            run = load_run(folder)
        one.seconds = run.wall_s or 0.0

    def _measure(self, one: Trial, run: Run) -> None:
        """The trial's state and objective, from its run."""
        losses = list(run.numbers("loss"))
        one.steps = len(losses)
        one.state = DONE if run.state == "done" else STOPPED
        if one.state == STOPPED or self.found.objective == "final_loss":
            one.value = self._loss(losses)
        else:
            scores = run.summary.get("eval") or {}
            one.value = scores.get(self.found.objective.removeprefix("eval_"))
        if one.value is None or not math.isfinite(one.value):
            one.state, one.value, one.words = FAILED, None, "its objective is not finite"

    def _behind(self, trial: Any, one: Trial) -> Until:
        """Told the last line of metrics: is the trial to be stopped?"""
        waiting = list(self.rungs)

        def behind(last: dict[str, Any]) -> bool:
            while waiting and last.get("step", 0) >= waiting[0]:
                rung = waiting.pop(0)
                losses = load_run(self.found.run_folder(one.number)).numbers("loss")
                trial.report(self._loss(list(losses)[:rung]), rung)
                if trial.should_prune():
                    return True
            return False

        return behind

    def _loss(self, losses: list[float]) -> float:
        return fmean(losses[-max(1, self.flags["steps"] // LAST_SHARE) :])

    def _told(self, one: Trial) -> float:
        """What a sampler learns: of a failed trial that nothing is worse."""
        worst = -math.inf if self.found.maximizes else math.inf
        return worst if one.value is None else one.value

    def _say(self, words: str, end: str = "\n") -> None:
        if self.show:
            print(words, end=end, flush=True)


def _shown(flags: Mapping[str, Any]) -> str:
    values = ((k, f"{v:.4g}" if isinstance(v, float) else v) for k, v in flags.items())
    return ", ".join(f"{name}={value}" for name, value in values)
