"""What is tracked, read back by each library's own reader, and trackers that fail."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.engine.errors import UserError
from helpers.lab.launch import verdict
from helpers.lab.launch.command import Job, find_program
from helpers.train import tracking
from helpers.train.tracking import Tracking, check_trackers, flat
from tests.support import scripts

SMALL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 16, "steps": 4, "batch_size": 4}


def train(out: Path, **flags: object) -> tuple[dict, list[dict]]:
    """A run on forked processes; its summary and its lines of metrics."""
    return scripts.trained(out=out, **SMALL | flags)


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """By TensorBoard's reader: value by step, by name."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    names = found.Tags()["scalars"]
    return {name: {one.step: one.value for one in found.Scalars(name)} for name in names}


def check_lines(found: dict[str, dict[int, float]], lines: list[dict], summary: dict) -> None:
    """Every number of every line under its own name, and phases, cost and final loss at the end."""
    for line in lines:
        for name, value in line.items():
            if name != "step" and value is not None:
                assert found[name][line["step"]] == pytest.approx(value, rel=1e-6)
    last = lines[-1]["step"]
    assert found["summary.final_loss"][last] == pytest.approx(summary["final_loss"], rel=1e-6)
    train_s = found["summary.phases_s.train"][last]
    assert train_s == pytest.approx(summary["phases_s"]["train"], rel=1e-6)
    assert found["summary.cost.device_hours"][last] >= train_s * summary["world_size"] / 3600


@pytest.mark.slow
def test_tensorboard_has_what_metrics_jsonl_has(tmp_path: Path) -> None:
    """Over two ranks, of which one tracks, with findings and a part that is resumed."""
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    parts = {"ranks": 2, "dp_replicate": 2, "track": "tensorboard", "checkpoint_every": 2}
    train(out, **parts, profile="2:3")
    summary, lines = train(out, **parts | {"steps": 6}, resume=True)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    check_lines(scalars(out / "tensorboard"), lines, summary)
    assert summary["tracked"] == {"tensorboard": f"tensorboard --logdir {out}/tensorboard"}
    assert summary["warnings"] == []
    job = Job(find_program("scripts/train.py"), (), 2, 1, 0, out, out / "logs")
    assert verdict.noted(job) == f"tracked: tensorboard --logdir {out}/tensorboard"


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "trackio"])
def test_the_command_to_look_takes_a_folder_of_two_words(tmp_path: Path, name, monkeypatch) -> None:
    pytest.importorskip(name)
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    out = tmp_path / "two words"
    out.mkdir()
    tracked = Tracking([name], out, {}, [])
    assert any(str(out) in word for word in shlex.split(tracked.look[name]))


def test_tensorboard_forgets_the_steps_after_a_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for done, values in ((0, [4.0, 3.0, 9.0, 9.0]), (2, [2.0])):
        tracked = Tracking(["tensorboard"], tmp_path, {}, [], done)
        for step, loss in enumerate(values, done + 1):
            tracked.log({"step": step, "loss": loss})
    assert scalars(tmp_path / "tensorboard")["loss"] == {1: 4.0, 2: 3.0, 3: 2.0}


@pytest.mark.slow
def test_mlflow_has_what_metrics_jsonl_has(tmp_path: Path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "run"
    summary, lines = train(out, track="mlflow")
    uri = summary["tracked"]["mlflow"].split()[-1]
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("helpers").experiment_id])
    found = {
        name: {one.step: one.value for one in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }
    check_lines(found, lines, summary)
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert (run.data.params["tp"], run.data.params["model"]) == ("1", "gptj-tiny")
    assert run.data.tags["findings"] == "none"


def test_mlflow_has_every_fact_and_how_a_run_ended(tmp_path: Path, monkeypatch) -> None:
    """Of more facts than it takes in a batch."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    facts, warnings = {f"fact{number}": number for number in range(250)}, []
    tracked = Tracking(["mlflow"], tmp_path / "run", facts, warnings)
    tracked.log({"step": 3, "loss": 9.0})
    summary = {"world_size": 1, "phases_s": {"train": 1.0}, "status": "diverged"}
    tracked.finish(summary, tmp_path / "findings.json")
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("helpers").experiment_id])
    assert run.info.status == "FAILED" and warnings == []
    assert run.data.params == {name: str(value) for name, value in facts.items()}
    assert [one.step for one in client.get_metric_history(run.info.run_id, "loss")] == [3]


@pytest.mark.slow
def test_trackio_has_what_metrics_jsonl_has(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    out = tmp_path / "run"
    summary, lines = train(out, track="trackio")
    code = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S; "
        "print(json.dumps([S.get_logs('helpers', 'run'), S.get_run_config('helpers', 'run')]))"
    )
    read = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRACKIO_DIR": str(out / "trackio")},
        capture_output=True,
        text=True,
        check=True,
    )
    logs, config = json.loads(read.stdout.splitlines()[-1])
    found: dict[str, dict[int, Any]] = {}
    for log in logs:
        for name, value in log.items():
            found.setdefault(name, {})[log["step"]] = value
    check_lines(found, lines, summary)
    assert config["model"] == "gptj-tiny" and config["tp"] == 1
    assert found["findings"][lines[-1]["step"]] == "none"


@pytest.mark.slow
def test_a_tracker_that_cannot_start_costs_a_warning(tmp_path: Path) -> None:
    """TensorBoard's folder is a file."""
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    out.mkdir()
    (out / "tensorboard").write_text("in the way")
    summary, lines = train(out, track="tensorboard")
    assert summary["status"] == "done" and len(lines) == 4 and summary["tracked"] == {}
    [warning] = summary["warnings"]
    assert warning.startswith("tensorboard tracks no more: ")


@pytest.mark.parametrize(
    ("when", "status", "ended_well"), [("log", "done", True), ("finish", "diverged", False)]
)
def test_a_tracker_that_fails_later_is_let_go(
    tmp_path: Path, monkeypatch, when: str, status: str, ended_well: bool
) -> None:
    calls: list[tuple] = []

    class Sound:
        look = "look"

        def __init__(self, *_: object) -> None: ...

        def log(self, step: int, numbers: dict) -> None:
            calls.append((type(self), step, numbers))

        def finish(self, *said: object) -> None:
            calls.append((type(self), *said))

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is full\nand more")

    broken = type("Broken", (Sound,), {when: fail})
    monkeypatch.setattr(tracking, "TRACKERS", {"sound": Sound, "broken": broken})
    warnings: list[str] = []
    tracked = Tracking(["broken", "sound"], tmp_path, {}, warnings)
    tracked.log({"step": 1, "loss": 2.0, "mfu": None})
    tracked.log({"step": 2, "loss": 1.0, "mfu": None})
    (tmp_path / "findings.json").write_text('{"findings": [{"words": "slow"}]}')
    summary = {"world_size": 2, "phases_s": {"train": 1800.0}, "status": status}
    tracked.finish(summary, tmp_path / "findings.json")
    first, second, last = [call for made, *call in calls if made is Sound]
    assert (first, second) == ([1, {"loss": 2.0}], [2, {"loss": 1.0}])
    step, numbers, words, good = last
    assert (step, numbers["summary.cost.device_hours"], words, good) == (
        2,
        1.0,
        ["slow"],
        ended_well,
    )
    assert warnings == ["broken tracks no more: RuntimeError: the disk is full"]
    assert tracked.look == {"sound": "look"}


def test_what_is_not_there_is_said_before_anything_starts(tmp_path: Path, monkeypatch) -> None:
    said = scripts.refusal("--track", "tensorboards", out=tmp_path / "x")
    assert said == "--track takes tensorboard, mlflow, trackio, with commas, not 'tensorboards'"
    monkeypatch.setitem(tracking.TRACKERS, "no_such_library", tracking.TensorBoard)
    with pytest.raises(UserError, match=r"no_such_library: pip install -e .\.\[track\]"):
        check_trackers(["no_such_library"])


def test_names_of_what_is_nested() -> None:
    nested = {"plan": {"tp": 2}, "peak": [1, None], "x": "y", "empty": {}}
    assert flat(nested) == {"plan.tp": 2, "peak.0": 1, "peak.1": "None", "x": "y"}
