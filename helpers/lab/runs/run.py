"""A finished run as tables: what it measured, where its time went, what all of it cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, check_access, check_count, need
from helpers.engine.files.run_record import PHASES, warmup_steps
from helpers.engine.models.configurations import expanded
from helpers.lab.paths import ROOT, shorten, shown
from helpers.lab.runs.failure_report import rank_folder
from helpers.lab.runs.reading import (
    are_sizes,
    is_loss,
    is_size,
    numbers,
    read_lines,
    read_object,
    read_text,
)

if TYPE_CHECKING:
    import pandas as pd

    from helpers.trace.traces import Trace

BEFORE, REST = "torchrun", "rest"  # what no phase of the ranks claims, measured by the launcher


@dataclass(frozen=True)
class Run:
    """A run's folder, read when asked.

    Attributes:
        path: the folder.
        command: what was started, to be repeated from the project root.
        state: done, failed or stopped; running where the launcher itself was killed.
        wall_s: from the launch to the end of the last process; None where torchrun was run by hand.
        before_ranks_s: the part of it before the ranks were started.
        flags: the program's own, by name; none where torchrun was run by hand.
    """

    path: Path
    command: str = ""
    state: str = ""
    wall_s: float | None = None
    before_ranks_s: float | None = None
    flags: dict[str, Any] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        return f"Run({shown(self.path)!r}, {self.state or 'launched by hand'})"

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """A row per step, as the script wrote them to metrics.jsonl; no rows where it took no step.

        Raises:
            UserError: the file is missing, or a line before the last is not JSON.
        """
        pandas = need("pandas", "notebooks")
        return pandas.DataFrame(read_lines(self.path / "metrics.jsonl"))

    @property
    def losses(self) -> "pd.Series":
        """The loss by step, NaN where it was not finite; a UserError where no step was taken."""
        return self.numbers("loss").set_axis(self.numbers("step"))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json.

        Raises:
            UserError: it is missing, as after a failure, or not a JSON object.
        """
        return read_object(self.path / "summary.json")

    @property
    def tracked(self) -> dict[str, str]:
        """By the name of each tracker, the command that shows the run; empty without --track."""
        return self.named("tracked")

    def named(self, name: str) -> dict[str, Any]:
        """What summary.json has by name under `name`; nothing where it has none."""
        values = self.summary.get(name) or {}
        if not isinstance(values, dict):
            raise UserError(f"{shown(self.path / 'summary.json')} has no {name} by name")
        return values

    @property
    def logs(self) -> Path:
        """The folder with launch.log and, a folder a rank, all that the ranks wrote."""
        folders = self._log_folders
        if not folders:
            raise UserError(f"{shown(self.path)} has no logs: it was not started by launch()")
        return max(folders, key=lambda folder: folder.stat().st_mtime_ns)

    @property
    def _log_folders(self) -> list[Path]:
        """One for each launch; none where torchrun was run by hand."""
        return [folder for folder in self.path.glob("logs*") if folder.is_dir()]

    def log(self, rank: int | None = None) -> str:
        """What was written: by all ranks, merged, or by one, its stdout before its stderr."""
        if rank is None:
            return shorten(read_text(self.logs / "launch.log"))
        check_count("rank", rank, least=0)
        folder = rank_folder(self.logs, rank)
        if folder is None:
            raise UserError(f"{shown(self.path)} has no log of rank {rank}")
        return shorten("".join(read_text(folder / f"{name}.log") for name in ("stdout", "stderr")))

    @property
    def phases(self) -> "pd.DataFrame":
        """Where the wall clock went: index phase, columns seconds and share, and their total.

        `torchrun` is the time before the ranks were started, and `rest` what no phase claims (the
        ranks' interpreters, the end). Neither is known where torchrun was run by hand.
        """
        pandas = need("pandas", "notebooks")
        seconds = {name: float(self._phases_s.get(name) or 0.0) for name in PHASES}
        if self.wall_s is not None:
            before_s = self.before_ranks_s or 0.0
            rest_s = max(0.0, self.wall_s - before_s - sum(seconds.values()))
            seconds = {BEFORE: before_s, **seconds, REST: rest_s}
        total_s = sum(seconds.values())
        table = pandas.DataFrame({"seconds": {**seconds, "total": total_s}}).rename_axis("phase")
        table["share"] = table["seconds"] / total_s if total_s else float("nan")
        return table

    def cost(self, price_per_hour: float) -> "pd.DataFrame":
        """`phases`, priced: a machine is paid from launch to exit, whatever it does.

        `price_per_hour` is that of all machines of the run together; `cost` has its currency. The
        row `train` shows the share of the bill that was training. `cost_per_million_tokens` divides
        each row by the tokens trained: its total is what they really cost, its row `train` is the
        smaller figure that is often quoted. Of a run that was launched again all of it is the last
        launch's: what was trained before its checkpoint was paid before.
        """
        if price_per_hour is None or not is_size(price_per_hour):
            raise UserError(f"price_per_hour is {price_per_hour!r:.40}: give a price of 0 or more")
        table = self.phases
        table["cost"] = table["seconds"] / 3600 * price_per_hour
        millions = self._paid_tokens() / 1e6
        table["cost_per_million_tokens"] = table["cost"] / millions if millions else float("nan")
        return table

    def _paid_tokens(self) -> float:
        """Those of the last launch, whose logs stand beside those of the ones before."""
        tokens, done = self.numbers("tokens"), self.summary.get("resumed_after")
        if not is_size(done):
            raise UserError(f"{shown(self.path / 'summary.json')} has no steps as resumed_after")
        again = done and len(self._log_folders) != 1
        return tokens[self.numbers("step") > done].sum() if again else tokens.sum()

    @cached_property
    def traces(self) -> list["Trace"]:
        """The traced steps, by rank: for lab/drawings/profile_trace.py. The same as one timeline is
        trace.json, for ui.perfetto.dev.

        Raises:
            UserError: the run was not profiled, or its traces are broken.
        """
        from helpers.trace.traces import read_traces

        return read_traces(self.path / "traces")

    @property
    def findings(self) -> "pd.DataFrame":
        """What slows the run down, a row per finding: index kind, columns ranks, amount and words.

        Raises:
            UserError: the run was not profiled, or findings.json is broken.
        """
        pandas = need("pandas", "notebooks")
        path = self.path / "findings.json"
        findings = read_object(path).get("findings")
        if not isinstance(findings, list) or not all(isinstance(one, dict) for one in findings):
            raise UserError(f"{shown(path)} has no list of findings")
        columns = ["kind", "ranks", "amount", "words"]
        return pandas.DataFrame(findings, columns=columns).set_index("kind")

    @property
    def _phases_s(self) -> dict[str, float]:
        phases = self.summary.get("phases_s")
        if not are_sizes(phases):
            raise UserError(f"{shown(self.path / 'summary.json')} has no phases_s in seconds")
        return phases

    def numbers(self, name: str) -> "pd.Series":
        """A column of `metrics`, checked: for sums and means.

        Raises:
            UserError: as `reading.numbers`.
        """
        return numbers(self.metrics, name, self.path / "metrics.jsonl")


def load_run(path: str | Path) -> Run:
    """The run in the folder `path`, relative to the project root unless absolute.

    Raises:
        UserError: there is no such folder, or no run in it, or its launch.json is unreadable.
    """
    path = ROOT / expanded(path)
    check_access(path / "launch.json")
    if not path.is_dir():
        raise UserError(f"there is no run folder {shown(path)}")
    record = path / "launch.json"
    if not record.exists() and not holds_run(path):
        raise UserError(f"{shown(path)} holds no run: no metrics.jsonl, no summary.json")
    known = read_object(record) if record.exists() else {}
    for name, fits in RECORDED.items():
        if name in known and not fits(known[name]):
            raise UserError(
                f"{shown(record)} has {name} {known[name]!r:.40}, which launch() does not write: "
                "take the file away, if somebody edited it"
            )
    return Run(path, **{name: known[name] for name in RECORDED if name in known})


# what a Run takes from launch.json, and of which kind it is
RECORDED: dict[str, Callable[[Any], bool]] = {
    "command": lambda value: isinstance(value, str),
    "state": lambda value: isinstance(value, str),
    "wall_s": is_size,
    "before_ranks_s": is_size,
    "flags": lambda value: isinstance(value, dict),
}


def holds_run(path: Path) -> bool:
    """Whether a training script has written into the folder `path`."""
    return any((path / name).exists() for name in ("metrics.jsonl", "summary.json"))


def compare(runs: Mapping[str, Run]) -> "pd.DataFrame":
    """Runs beside each other, a row per run; `relative` is the throughput over the first run's.

    Throughput is the median over the steps with the 10th and 90th percentile, the warm-up left out
    (`warmup_steps` of engine/files/run_record.py). `final_loss` is there because a faster run that
    learns less is not faster.

    Raises:
        UserError: there is no run, or one has a loss that is no number.
    """
    if not runs:
        raise UserError("to compare takes at least one run")
    pandas = need("pandas", "notebooks")
    rows = [_measures(run) for run in runs.values()]
    table = pandas.DataFrame(rows, index=pandas.Index(runs, name="run"))
    speed = table["tokens_per_s"]
    table.insert(3, "relative", speed / speed.iloc[0])
    return table


def _measures(run: Run) -> dict[str, Any]:
    speed = run.numbers("tokens_per_s")
    speed = speed.iloc[warmup_steps(len(speed)) :].dropna()
    if not is_loss(run.summary.get("final_loss")):
        raise UserError(f"{shown(run.path / 'summary.json')} has a final_loss that is no number")
    return {
        "tokens_per_s": speed.median(),
        "p10": speed.quantile(0.1),
        "p90": speed.quantile(0.9),
        "steps": len(run.numbers("step")),
        "final_loss": run.summary.get("final_loss"),
    }
