"""The numbers of a line of metrics that only a device with a known peak has."""

from pathlib import Path

import pytest
import torch

from helpers.engine.trainer import StepResult
from helpers.planner.cost import train_flops_per_token
from helpers.planner.shape.families import model_shape
from helpers.text.tokens import Batch
from helpers.train import record
from helpers.train.arguments import parse
from helpers.train.job import Job, prepare

PEAK = 1e12
CPU = torch.device("cpu")


@pytest.fixture
def job_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A job on two ranks whose devices have a peak in bf16."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(record, "peak_flops", lambda _, precision: {"bf16": PEAK}.get(precision))

    def make(*words: str) -> Job:
        flags = ("--dp-shard=2", "--seq-len=32", "--layers=1", "--out", str(tmp_path / "run"))
        return prepare(parse([*flags, *words]))

    return make


def test_utilization_is_of_all_devices_and_the_rows_length(job_of) -> None:
    job = job_of("--precision=bf16")
    rows = torch.zeros(4, 16, dtype=torch.long)  # shorter than --seq-len, and some of it padding
    batch = Batch(rows, rows, samples=4, tokens=50)
    result = StepResult(7, 2.5, 1.5, 1e-3, step_s=9.0)
    line = record.measured(batch, result, 0.5, record.utilization(job, CPU))
    flops = train_flops_per_token(model_shape(job.config), 16)
    assert line["mfu"] == pytest.approx(100 * flops / (2 * PEAK))
    assert (line["step_s"], line["tokens_per_s"]) == (0.5, 100)


@pytest.mark.parametrize("flags", (["--precision=fp16"], ["--precision=bf16", "--lora-rank=4"]))
def test_utilization_is_unknown_without_a_peak_or_with_a_frozen_base(job_of, flags) -> None:
    assert record.utilization(job_of(*flags), CPU)(100.0, 16) is None
