"""Folders of runs that cannot be used as they are, and some that can: moved, linked, edited."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.engine.files.run_record import LOCK
from helpers.train.arguments import parse
from helpers.train.job import prepare
from tests.support import scripts

SMALL = {"layers": 1, "hidden": 32, "heads": 2, "seq_len": 32, "batch_size": 4}
RESUMED = SMALL | {"steps": 4, "resume": True, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    done = scripts.process(out=out, steps=2, checkpoint_every=1, **SMALL)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def out(two_steps: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two_steps, tmp_path / "run")


def test_a_lock_that_cannot_be_written_is_one_line(out: Path) -> None:
    (out / LOCK).unlink()
    (out / LOCK).mkdir()
    line = scripts.refusal("--resume", out=out)
    assert line == f"cannot write to {out}: Is a directory"


def test_a_link_that_leads_nowhere_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    done = scripts.process(out=tmp_path / "out", steps=1, **SMALL)
    assert done.returncode == 2
    assert scripts.the_line(done.stderr).startswith(f"cannot write to {tmp_path / 'out'}: ")


def test_a_file_in_the_way_is_one_line(out: Path) -> None:
    (out / "metrics.jsonl").unlink()
    (out / "metrics.jsonl").mkdir()
    done = scripts.process(out=out, **RESUMED)
    assert done.returncode == 1
    line = scripts.the_line(done.stderr)
    assert line == f"{out / 'metrics.jsonl'} cannot be read or written: Is a directory"


def test_checkpoints_that_a_link_leads_to_are_the_runs_own(out: Path, tmp_path: Path) -> None:
    (out / "checkpoints").rename(tmp_path / "elsewhere")
    (out / "checkpoints").symlink_to(tmp_path / "elsewhere")
    done = scripts.process(out=out, **RESUMED)
    assert done.returncode == 0, done.stderr
    kept = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert kept == {"step-00000003", "step-00000004"}


def test_a_renamed_checkpoint_has_the_steps_that_it_says(out: Path) -> None:
    folder = out / "checkpoints"
    (folder / "step-00000002").rename(folder / "step-00000003")
    done = scripts.process(out=out, **RESUMED)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["resumed_after"] == 2


def test_lines_of_metrics_that_a_summary_cannot_count_are_left_out(out: Path) -> None:
    rows = [1], {"step": 1}, {"step": True}, {"step": 1, "loss": 1, "tokens": "x", "step_s": 1}
    metrics = out / "metrics.jsonl"
    whole = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*map(json.dumps, rows), *whole]) + "\n")
    done = scripts.process(out=out, **RESUMED)
    assert done.returncode == 0, done.stderr
    after = metrics.read_text().splitlines()
    assert after[:2] == whole and len(after) == 4


def test_what_ended_a_moment_ago_is_not_written_over(two_steps: Path, tmp_path: Path) -> None:
    """Two runs were started at once in a folder, and the first has ended before the second has
    loaded its model."""
    args = parse(["--steps", "1", "--out", str(tmp_path / "run")])
    job = prepare(args)
    shutil.copytree(two_steps, tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        job.claim_folder()
    job.own_folder.close()
