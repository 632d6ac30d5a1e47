"""The lines of a run's metrics: which of them go on, and which a throughput is made of."""

import json
from pathlib import Path

import pytest

from helpers.engine.files.run_record import Metrics, warmup_steps
from helpers.engine.files.whole import replace_text


def line(step: int, step_s: float = 1.0) -> dict[str, float]:
    return {"step": step, "loss": 2.0, "tokens": 8, "samples": 1, "step_s": step_s}


def test_a_resumed_run_keeps_the_lines_before_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    begun = Metrics(path)
    for step in (1, 2, 3, 4):
        begun.add(line(step))
    begun.close()
    resumed = Metrics(path, done=3)
    resumed.add(line(4, step_s=5.0))
    resumed.close()
    expected = [line(1), line(2), line(3), line(4, step_s=5.0)]
    assert [json.loads(text) for text in path.read_text().splitlines()] == expected
    assert resumed.lines == expected


def test_a_run_from_the_beginning_keeps_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(line(1)) + "\n")
    Metrics(path).close()
    assert path.read_text() == ""


@pytest.mark.parametrize(("steps", "left_out"), [(4, 0), (5, 2), (29, 2), (30, 3)])
def test_the_first_steps_are_in_no_throughput(steps: int, left_out: int) -> None:
    assert warmup_steps(steps) == left_out
    metrics = Metrics(None)
    for step in range(steps):
        metrics.add(line(step + 1, step_s=10.0 if step < left_out else 2.0))
    assert metrics.median_rate("tokens") == 4.0


def test_a_median_is_of_what_follows_the_first_steps() -> None:
    metrics = Metrics(None)
    for step, step_s in enumerate((8.0, 8.0, 1.0, 2.0, 4.0), start=1):
        metrics.add(line(step, step_s))
    assert metrics.median_rate("tokens") == 4.0


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    replace_text(path, "{}\n")
    replace_text(path, '{"ä": 1}\n')
    assert [one.name for one in tmp_path.iterdir()] == ["findings.json"]
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, '{"half": "\ud800"}')
    assert path.read_text(encoding="utf-8") == '{"ä": 1}\n'
