"""Experiment trackers beside metrics.jsonl: --track tensorboard,mlflow,trackio.

Each is given the run's facts at its start, every line of metrics under the names of metrics.jsonl,
and the summary's numbers at its end (`summary.phases_s.train`). They are kept in the run's folder,
or where the libraries' own variables say (MLFLOW_TRACKING_URI, TRACKIO_DIR), without a login. The
first rank alone tracks, and a tracker that fails is let go with one warning.
"""

import contextlib
import io
import json
import os
import shlex
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from helpers.engine.errors import UserError, named_reason, need

EXPERIMENT = "helpers"
MOST_PARAMS = 100  # of MLflow in a batch
Facts, Numbers = dict[str, Any], dict[str, float]


class Tracker(Protocol):
    """What a tracker does. Numbers come by name."""

    look: str  # the command that shows what was tracked

    def __init__(self, out: Path, facts: Facts, done: int) -> None:
        """Start in a run's folder; `done`: steps that an earlier part of it has taken."""

    def log(self, step: int, numbers: Numbers) -> None: ...

    def finish(self, step: int, numbers: Numbers, words: list[str], good: bool) -> None:
        """The summary's numbers, the findings in words, and whether the run ended well."""


class TensorBoard:
    def __init__(self, out: Path, facts: Facts, done: int) -> None:
        writer = need("torch.utils.tensorboard", "track").SummaryWriter
        self.look = f"tensorboard --logdir {shlex.quote(str(out / 'tensorboard'))}"
        self.writer = writer(str(out / "tensorboard"), purge_step=done + 1 if done else None)
        self.writer.add_text("facts", f"```\n{json.dumps(facts, indent=1)}\n```")

    def log(self, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a run can be watched, and a crash costs nothing

    def finish(self, step: int, numbers: Numbers, words: list[str], good: bool) -> None:
        self.log(step, numbers)
        self.writer.add_text("findings", "\n\n".join(words) or "none", step)
        self.writer.close()


class MLflow:
    def __init__(self, out: Path, facts: Facts, done: int) -> None:
        mlflow = need("mlflow", "track")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{out.absolute() / 'mlflow.db'}"
        self.look = f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
        self.entities, self.client = mlflow.entities, mlflow.MlflowClient(tracking_uri=uri)
        if known := self.client.get_experiment_by_name(EXPERIMENT):
            experiment = known.experiment_id
        else:  # no files are kept, but MLflow wants a place for them
            place = (out.absolute() / "mlflow").as_uri()
            experiment = self.client.create_experiment(EXPERIMENT, artifact_location=place)
        self.run = self.client.create_run(experiment, run_name=out.name).info.run_id
        params = [self.entities.Param(name, str(value)) for name, value in facts.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.run, params=params[first : first + MOST_PARAMS])

    def log(self, step: int, numbers: Numbers) -> None:
        now_ms = int(time.time() * 1000)
        made = [self.entities.Metric(name, value, now_ms, step) for name, value in numbers.items()]
        self.client.log_batch(self.run, metrics=made)

    def finish(self, step: int, numbers: Numbers, words: list[str], good: bool) -> None:
        self.log(step, numbers)
        self.client.set_tag(self.run, "findings", "\n".join(words) or "none")
        self.client.set_terminated(self.run, "FINISHED" if good else "FAILED")


class Trackio:
    def __init__(self, out: Path, facts: Facts, done: int) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(out.absolute() / "trackio"))  # read on import
        trackio = need("trackio", "track")
        folder = trackio.utils.TRACKIO_DIR
        self.look = f"TRACKIO_DIR={shlex.quote(str(folder))} trackio show --project {EXPERIMENT}"
        names = {"project": EXPERIMENT, "name": out.name, "resume": "allow" if done else "never"}
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with contextlib.redirect_stdout(io.StringIO()):
            self.run = trackio.init(**names, **quiet, config=facts)

    def log(self, step: int, numbers: Numbers) -> None:
        self.run.log(numbers, step=step)

    def finish(self, step: int, numbers: Numbers, words: list[str], good: bool) -> None:
        self.run.log(numbers | {"findings": "\n".join(words) or "none"}, step=step)
        with contextlib.redirect_stdout(io.StringIO()):
            self.run.finish()


# by the name of the library
TRACKERS: dict[str, type[Tracker]]
TRACKERS = {"tensorboard": TensorBoard, "mlflow": MLflow, "trackio": Trackio}


def check_trackers(names: Iterable[str]) -> None:
    """See that the libraries are there, before anything starts.

    Raises:
        UserError: one is not installed, or there is no such tracker.
    """
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"--track takes {', '.join(TRACKERS)}, with commas, not {name!r}")
        if find_spec(name) is None:
            need(name, "track")  # says so


class Tracking:
    """A run's trackers by their names in TRACKERS; a rank that does not track has none.

    Args:
        warnings: of the run, which get a line where a tracker fails.
        done: steps that an earlier part of the run has taken.
    """

    def __init__(
        self, names: Iterable[str], out: Path, facts: Facts, warnings: list[str], done: int = 0
    ) -> None:
        self.trackers: dict[str, Tracker] = {}
        self.warnings, self.step = warnings, done
        for name in names:
            self._try(name, lambda made=TRACKERS[name]: made(out, flat(facts), done))

    @property
    def look(self) -> dict[str, str]:
        """By tracker, the command that shows the run."""
        return {name: tracker.look for name, tracker in self.trackers.items()}

    def log(self, line: dict[str, Any]) -> None:
        """A line of metrics.jsonl."""
        self.step = line["step"]
        numbers = {name: value for name, value in _numbers(line).items() if name != "step"}
        for name, tracker in list(self.trackers.items()):
            self._try(name, lambda one=tracker: one.log(self.step, numbers))

    def finish(self, summary: dict[str, Any], findings: Path) -> None:
        """The run's summary, the findings if it was profiled, and what it has cost: hours of a
        device, which are priced by `run.cost`."""
        words = _words(findings)
        hours = summary["world_size"] * sum(summary["phases_s"].values()) / 3600
        numbers = _numbers({"summary": summary | {"cost": {"device_hours": hours}}})
        good = summary["status"] == "done"
        for name, tracker in list(self.trackers.items()):
            self._try(name, lambda one=tracker: one.finish(self.step, numbers, words, good))

    def _try(self, name: str, work: Callable[[], Tracker | None]) -> None:
        """A run goes on without a tracker that fails, whatever it fails of."""
        try:
            made = work()
            if made is not None:
                self.trackers[name] = made
        except Exception as error:
            self.trackers.pop(name, None)
            self.warnings.append(f"{name} tracks no more: {named_reason(error)}")
            print(f"warning: {self.warnings[-1]}", flush=True)


def flat(values: Any, name: str = "") -> dict[str, Any]:
    """Nested dictionaries and lists as one dictionary: `plan.tp`, `peak_memory_bytes.0`."""
    if isinstance(values, (list, tuple)):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {name: values if isinstance(values, (bool, int, float, str)) else str(values)}
    parts = [flat(value, f"{name}.{key}".lstrip(".")) for key, value in values.items()]
    return {key: value for part in parts for key, value in part.items()}


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {key: float(v) for key, v in flat(values).items() if isinstance(v, (int, float))}


def _words(findings: Path) -> list[str]:
    if not findings.exists():
        return []
    return [one["words"] for one in json.loads(findings.read_text("utf-8"))["findings"]]
