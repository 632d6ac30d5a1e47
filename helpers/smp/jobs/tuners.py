"""Tuners of a notebook as sweeps of this project: the space, the trials, the sampler."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from helpers.smp.jobs.job import Job
from helpers.smp.jobs.metrics import metrics
from helpers.smp.jobs.settings import flags, plain
from helpers.smp.reading.catalogue import catalogue
from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.sources import Place, Program
from helpers.smp.reading.values import Made, Unknown, is_known, unknown_in

TUNER = "sagemaker.tuner.HyperparameterTuner"
ARGUMENTS = ("estimator", "objective_metric_name", "hyperparameter_ranges", "metric_definitions")
BOUNDS = ("min_value", "max_value", "scaling_type")
SAMPLERS = {"bayesian": "tpe", "random": "random", "grid": "grid", "hyperband": "tpe"}
RANGES = {
    "ContinuousParameter": "float",
    "IntegerParameter": "int",
    "CategoricalParameter": "choice",
}


@dataclass(frozen=True)
class Sweep:
    """A tuner. `space` is by flags of helpers.train; `refused` says why it cannot be swept here;
    `left` are ranges that have no flag, with the reason."""

    place: Place
    space: dict[str, list[Any]] = field(default_factory=dict)
    trials: int | None = None
    sampler: str = "tpe"
    halving: bool = False
    objective: str = "final_loss"
    direction: str = "minimize"
    job: Job | None = field(default=None, repr=False)
    left: dict[str, str] = field(default_factory=dict)
    refused: str = ""


def sweeps(program: Program, followed: Interpreter, jobs: list[Job]) -> list[Sweep]:
    """All tuners of a program."""
    found = []
    for node, times in followed.calls.items():
        short = catalogue().short(times[-1].dotted)
        if short in (TUNER, f"{TUNER}.create"):
            found.append(_sweep(program.place(node.lineno), times[-1], jobs))
    return sorted(found, key=lambda one: one.place)


def _sweep(place: Place, made: Made, jobs: list[Job]) -> Sweep:
    given = dict(zip(ARGUMENTS, made.args)) | dict(made.kwargs)
    estimator = given.get("estimator")
    job = next((one for one in jobs if _is_of(one, estimator)), None)
    if job is None:
        kind = (
            estimator.dotted.rpartition(".")[2] if isinstance(estimator, Made) else "what it tunes"
        )
        return Sweep(
            place,
            refused=f"{kind} is no estimator of PyTorch or Hugging Face: tune it with "
            "Optuna itself, around its own training",
        )
    if job.refused:
        return Sweep(place, job=job, refused=job.refused)
    space, left = {}, {}
    for name, one, why in _ranges(given.get("hyperparameter_ranges"), job):
        if why:
            left[name] = why
        else:
            space[name] = one
    trials = given.get("max_jobs")
    strategy = str(given.get("strategy", "Bayesian")).lower()
    early = str(given.get("early_stopping_type", "Off")) != "Off"
    objective = _objective(given)
    kind = str(given.get("objective_type", "Maximize")).lower()
    return Sweep(
        place,
        space,
        trials if isinstance(trials, int) else None,
        SAMPLERS.get(strategy, "tpe"),
        early or strategy == "hyperband",
        objective,
        "maximize" if kind == "maximize" and "loss" not in objective else "minimize",
        job,
        left,
    )


def _is_of(job: Job, estimator: Any) -> bool:
    return (
        isinstance(estimator, Made)
        and job.estimator is not None
        and (job.estimator.made.node is estimator.node)
    )


def _ranges(given: Any, job: Job) -> Iterator[tuple[str, list[Any], str]]:
    """Ranges by the flags of helpers.train, or why one has none."""
    for name, one in given.items() if isinstance(given, dict) else ():
        row = flags().get(plain(str(name)))
        kind = one.dotted.rpartition(".")[2] if isinstance(one, Made) else ""
        if kind not in RANGES:
            yield str(name), [], f"{unknown_in(one) or one} is no range that is in the file"
            continue
        if row is None:
            yield str(name), [], "no flag of helpers.train is like it"
            continue
        if kind == "CategoricalParameter":
            yield _choices(str(name), one, row.flag)
        else:
            yield _bounds(str(name), one, row.flag, RANGES[kind])


def _choices(name: str, one: Made, flag: str) -> tuple[str, list[Any], str]:
    parts = [*one.args, *one.kwargs.values()]
    if not is_known(parts) or not parts:
        return name, [], f"{unknown_in(*parts)} is not in the file"
    return flag, ["choice", *(parts[0] if isinstance(parts[0], list) else parts)], ""


def _bounds(name: str, one: Made, flag: str, kind: str) -> tuple[str, list[Any], str]:
    given = dict(zip(BOUNDS, one.args)) | dict(one.kwargs)
    bounds = [given.get(bound, Unknown(bound)) for bound in BOUNDS[:2]]
    scaling = given.get("scaling_type", "Auto")
    if missing := unknown_in(*bounds, scaling):
        return name, [], f"{missing} is not in the file"
    return flag, [*(["log"] if scaling == "Logarithmic" else []), kind, *bounds], ""


def _objective(given: dict[Any, Any]) -> str:
    """What is compared: the loss at the end, or the evaluation's loss or accuracy."""
    name = given.get("objective_metric_name")
    definitions = given.get("metric_definitions")
    wanted = [
        one
        for one in (definitions if isinstance(definitions, list) else [])
        if isinstance(one, dict) and one.get("Name") == name
    ] or [{"Name": str(name), "Regex": str(name)}]
    regex = metrics(wanted)[0].regex
    if "eval_accuracy" in regex:
        return "eval_accuracy"
    return "eval_loss" if "eval_loss" in regex else "final_loss"
