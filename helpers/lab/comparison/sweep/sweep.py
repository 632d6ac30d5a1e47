"""sweep(): tries settings one run after another, keeps everything on disk, and goes on when killed.

What is tried next is Optuna's choice, from a seed of the trial's own; so a sweep that was killed
goes on to the trials that it would have had. A run that was killed with it goes on from its
checkpoint.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, need
from helpers.engine.files.run_record import claim
from helpers.lab.comparison.sweep.bracket import next_share
from helpers.lab.comparison.sweep.halving import Rungs, mean_of_last
from helpers.lab.comparison.sweep.result import (
    DONE,
    FAILED,
    FILE,
    STOPPED,
    Sweep,
    Trial,
    load_sweep,
)
from helpers.lab.comparison.sweep.space import (
    Line,
    Range,
    Space,
    grid,
    line_of,
    read_space,
    suggest,
)
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.paths import ROOT, shown, unused
from helpers.lab.runs.failure_report import RunFailed
from helpers.lab.runs.run import Run, load_run

SAMPLERS = ("auto", "tpe", "random", "grid")
DIRECTIONS = ("minimize", "maximize")
OBJECTIVES = ("final_loss", "eval_loss", "eval_accuracy")
STUDY = "study.log"


def sweep(
    script: str | Path,
    space: Mapping[str, Any],
    trials: int,
    *,
    sampler: str = "auto",
    halving: bool = False,
    objective: str = "final_loss",
    direction: str = "minimize",
    seed: int = 0,
    out: str | Path | None = None,
    price_per_hour: float | None = None,
    checkpoint_every: int | None = None,
    nproc: int = 1,
    ranks: Ranks | None = None,
    env: Mapping[str, str] | None = None,
    threads: int | None = None,
    show: bool = True,
    **flags: Any,
) -> Sweep:
    """Try `trials` settings of a training script, each in a run of its own.

    Args:
        script: as for `launch`; it trains, as helpers.train does.
        space: what may be tried, by the script's flags: see space.py.
        sampler: `tpe`, which learns from the trials before; `random`; `grid`, evenly spread; or
            `auto`: for one flag of numbers a search of its lowest place (bracket.py), else `tpe`.
        halving: stop a trial at a ninth and at a third of its steps unless its loss is among the
            best third of those that came so far.
        objective: `final_loss`, the mean over the last tenth of the steps; or of the evaluation
            `eval_loss` or `eval_accuracy`, with eval_data among the flags.
        out: the sweep's folder; the same call with the folder of a killed one goes on with it.
        price_per_hour: of the machine, for the cost of each trial.
        checkpoint_every: steps; a fourth of the run's by default, so that a killed trial goes on.
        nproc, ranks, env, threads: as for `launch`; `ranks` are kept warm over all trials.
        show: print a line a trial.
        flags: the script's own, the same in every trial; `steps` must be among them.

    Raises:
        UserError: nothing was started: a space or a number that cannot be, or another sweep's
            folder.
        RunFailed: the first trial failed, as every other would; later ones that fail are kept as
            failed.
    """
    optuna = need("optuna", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("optuna").setLevel(logging.ERROR)
    checked = read_space(space)
    facts = _facts(
        script, checked, trials, sampler, halving, objective, direction, seed, nproc, flags
    )
    facts |= {"price_per_hour": price_per_hour, "trials_wanted": trials}
    folder = Path(ROOT / (out if out is not None else unused("runs/sweep")))
    with claim(folder):
        found = _begun(folder, facts)
        runner = _Runner(found, checked, script, flags, show)
        runner.options = {"nproc": nproc, "ranks": ranks, "env": env, "threads": threads}
        every = checkpoint_every or max(1, flags["steps"] // 4)
        runner.options |= {"checkpoint_every": every, "resume": "auto"}
        runner.run(optuna, trials)
    return found


def _facts(
    script: str | Path,
    space: Space,
    trials: int,
    sampler: str,
    halving: bool,
    objective: str,
    direction: str,
    seed: int,
    nproc: int,
    flags: Mapping[str, Any],
) -> dict[str, Any]:
    """What a sweep is, and must be again when it goes on.

    Raises:
        UserError: one of these cannot be.
    """
    for name, value, allowed in (
        ("sampler", sampler, SAMPLERS),
        ("objective", objective, OBJECTIVES),
        ("direction", direction, DIRECTIONS),
    ):
        if value not in allowed:
            raise UserError(f"{name} is one of {', '.join(allowed)}, not {value!r}")
    if type(trials) is not int or trials < 1:
        raise UserError(f"trials is {trials!r}: it must be a whole number of at least 1")
    if type(flags.get("steps")) is not int or flags["steps"] < 1:
        raise UserError("steps must be given: every trial takes as many")
    both = sorted(set(space) & set(flags))
    if both:
        raise UserError(f"{both[0]} is in the space and a flag, too: give it once")
    if objective.startswith("eval") and not flags.get("eval_data"):
        raise UserError(f"{objective} is of an evaluation: give eval_data")
    if halving and direction == "maximize":
        raise UserError("halving compares losses on the way: minimize one")
    return {
        "script": str(script),
        "space": {name: _as_data(values) for name, values in space.items()},
        "sampler": sampler,
        "halving": halving,
        "objective": objective,
        "direction": direction,
        "seed": seed,
        "nproc": nproc,
        "flags": {name: str(value) for name, value in sorted(flags.items())},
    }


def _as_data(values: Range | list[Any]) -> Any:
    if isinstance(values, list):
        return values
    return [*(["log"] if values.log else []), values.low, values.high]


def _begun(folder: Path, facts: dict[str, Any]) -> Sweep:
    """The sweep of a folder as it was left, or a new one.

    Raises:
        UserError: the folder has another sweep, or a run.
    """
    if not (folder / FILE).exists():
        if (folder / "metrics.jsonl").exists():
            raise UserError(f"{shown(folder)} already holds a run: choose another out")
        return Sweep(folder, facts)
    found = load_sweep(folder)
    free = ("price_per_hour", "trials_wanted")
    for name, value in facts.items():
        if name not in free and found.facts.get(name) != value:
            raise UserError(
                f"{shown(folder)} has a sweep with {name} {found.facts.get(name)!r}, not "
                f"{value!r}: choose another out, or call it as it was"
            )
    found.facts |= {name: facts[name] for name in free}
    return found


class _Runner:
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
