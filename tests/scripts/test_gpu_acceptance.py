"""The stages that a GPU is to pass run through on a CPU, in small, and leave records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/measure/gpu/acceptance.py"
QUICK = ("machine",)
OTHERS = ("layouts", "two-ranks", "train", "calibrate", "speed", "parts", "compile", "qlora")
OTHERS += ("profile", "notebook")


def accept(out: Path, *arguments: str) -> tuple[subprocess.CompletedProcess, list[dict]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--tiny", "--out", str(out), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        timeout=590,
    )
    return done, [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", [*QUICK, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)]
)
def test_a_stage_runs_on_a_cpu(tmp_path: Path, stage: str) -> None:
    done, [record] = accept(tmp_path, stage)
    assert done.returncode == 0, done.stdout + done.stderr
    assert record["stage"] == stage and record["ok"] and record["tiny"]
    assert record["checks"] or record["figures"]
    assert record["device"] == "cpu" and record["versions"]["torch"] and record["command"]


@pytest.mark.slow
def test_a_stage_that_does_not_end_leaves_a_record(tmp_path: Path) -> None:
    done, [record] = accept(tmp_path, "layouts", "--limit", "0.2")
    assert done.returncode == 1
    assert not record["ok"] and record["ended"] == "no end after 0 s"


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    done, records = accept(tmp_path, "fusion")
    assert done.returncode == 2 and "no stage 'fusion'; there are: machine" in done.stderr
    assert records == []
