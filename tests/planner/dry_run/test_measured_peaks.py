"""The dry run of an accelerator against what one H200 held at most, from data/gpu_runs."""

import json
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("transformers")
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run

RECORDS = Path(__file__).resolve().parents[3] / "data/gpu_runs"
WORKSPACES = 70 * 2**20  # of cuBLAS and the like, which is there whatever runs


class Run(NamedTuple):
    record: str
    figure: tuple[str, ...]
    source: str
    fields: dict[str, Any]
    batch: int
    unit: int = 1
    layers: int = 0


SPEED, STEPS = "213109-speed", "213913-parts"
RUNS = {
    "GPT-J, six layers": Run(
        "174438-parts",
        ("memory of GPT-J, none, 8 rows, 6 layers", "peak_mib"),
        "gptj-6b",
        {},
        8,
        2**20,
        6,
    ),
    "GPT-J": Run(SPEED, ("GPT-J, nothing recomputed", "peak_bytes"), "gptj-6b", {}, 8),
    "GPT-J, all recomputed": Run(
        SPEED, ("GPT-J, all recomputed", "peak_bytes"), "gptj-6b", {"activation": "full"}, 16
    ),
    "GPT-J, micro-batches": Run(
        STEPS,
        ("GPT-J, 4 micro-batches of 8, expandable segments", "peak_bytes"),
        "gptj-6b",
        {"microbatches": 4},
        32,
    ),
    "GPT-2, which drops attention": Run(
        "213509-compile", ("engine, bf16", "peak_bytes"), "gpt2", {}, 16
    ),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_a_gpu_held_what_the_dry_run_says(run: Run) -> None:
    [path] = RECORDS.glob(f"*-{run.record}.json")
    record = json.loads(path.read_text())
    assert record["device"] == "NVIDIA H200"
    measured = run.unit * reduce(getitem, run.figure, record["figures"])
    config = load_config(run.source)
    config.n_layer = run.layers or config.n_layer
    plan = ParallelPlan(precision="bf16", **run.fields)
    said = dry_run(config, plan, batch=run.batch, seq_len=1024, device="meta").peak_bytes
    assert said + WORKSPACES == pytest.approx(measured, rel=0.001)
