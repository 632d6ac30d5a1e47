"""Where a launch happens: inside another job, on a full disk, beside records that were edited."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.lab.launch.launch import launch
from helpers.lab.runs.failure_report import RunFailed, explain
from helpers.lab.runs.run import load_run
from tests.lab.launch.test_launch import FAULT

OF_A_JOB = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "3",
    "PET_RDZV_ENDPOINT": "nowhere.invalid:29400",
    "PET_MAX_RESTARTS": "3",
    "WORLD_SIZE": "8",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "nowhere.invalid",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "other",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
}


def test_a_launch_from_inside_a_job_is_its_own(tmp_path, monkeypatch):
    """Its ranks waited for the job's second node."""
    for name, value in OF_A_JOB.items():
        monkeypatch.setenv(name, value)
    run = launch(FAULT, nproc=2, out=tmp_path / "run", timeout_s=120, show=False)
    assert run.state == "done"


@pytest.fixture
def full_disk(disk_of: Callable[[str], Path]) -> Path:
    """A file system on which folders can be made, and no file has room."""
    folder = disk_of("64k")
    with pytest.raises(OSError, match="No space left"):
        (folder / "filling").write_bytes(b"x" * 100_000)
    return folder


def test_a_full_disk_is_one_line_before_anything_starts(full_disk):
    with pytest.raises(UserError, match=r"^cannot write in .*disk/run: No space left on device$"):
        launch(FAULT, out=full_disk / "run", show=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("command", 5),
        ("state", None),
        ("wall_s", "long"),
        ("wall_s", True),
        ("before_ranks_s", [1]),
        ("flags", "--steps 5"),
    ],
)
def test_a_record_of_a_launch_of_other_kinds_is_one_line(tmp_path, name, value):
    record = {"command": "torchrun", "flags": {}, "state": "done", "wall_s": 1.5}
    (tmp_path / "launch.json").write_text(json.dumps(record))
    assert load_run(tmp_path).wall_s == 1.5
    (tmp_path / "launch.json").write_text(json.dumps(record | {name: value}))
    with pytest.raises(UserError, match=f"launch.json has {name} .*, which launch"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "{}",
        "[1, null]",
        "[" * 50_000,
        '[{"rank": "0", "exit_code": 1, "closed": false}]',
        '[{"rank": 0, "exit_code": null, "closed": false}]',
        '[{"rank": 0, "exit_code": 1}]',
        '[{"node": "0", "exit_code": -9}]',
        '[{"node": 0}]',
    ],
    ids=lambda text: text[:40],
)
def test_a_record_of_failures_of_other_kinds_hides_no_failure(tmp_path, text):
    (tmp_path / "failures.json").write_text(text)
    error = explain(tmp_path, tmp_path, 1, ["its last words"])
    assert isinstance(error, RunFailed)
    assert error.message.startswith("torchrun ended with code 1 before any rank failed")
    assert error.message.endswith("its last words")
