"""The command line on the device: checkpoints, resuming, saving, a profile, a notebook."""

import gzip
import json
import math
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from report import CUDA, ROOT, Report

from helpers.lab.launch.launch import launch
from helpers.lab.runs.run import Run

AT_ONCE = 4
SMALL = {"model": "gptj-tiny", "batch_size": 8, "seq_len": 64}
QLORA = {"task": "instruct", "lora_rank": 4, "quantize": "nf4", "precision": "bf16"}
WAYS = {
    "bf16": {"precision": "bf16"},
    "checkpoints in the background": {"background": True, "checkpoint_every": 2},
    "fp16": {"precision": "fp16"},
    "selective": {"activation": "selective", "precision": "bf16"},
    "offload": {"offload": True, "activation": "full"},
    "save": {"save": True},
    "qlora": {"model": "falcon-tiny", **QLORA, "save": True, "merge": True},
    "adamw8bit": {"optimizer": "adamw8bit"},
}


def train(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder, report.attempt("resume to the same losses"):
        out = Path(folder)
        whole = run(out / "whole", steps=8, checkpoint_every=4)
        fourth = whole.path / "checkpoints" / "step-00000004"
        again = run(out / "again", steps=8, resume=fourth)
        pairs = zip(whole.losses[-4:], again.losses[-4:], strict=True)
        off = max(abs(one - other) / one for one, other in pairs)
        report.check("resume to the same losses", off < (1e-4 if CUDA else 1e-6), f"{off:.1e}")
    with ThreadPoolExecutor(AT_ONCE) as pool:  # for most of its time a run starts
        list(pool.map(lambda name: train_by(report, name), WAYS))


def train_by(report: Report, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder, report.attempt(name):
        summary = run(Path(folder) / "run", steps=5, **WAYS[name]).summary
        fine = summary["status"] == "done" and math.isfinite(summary["final_loss"])
        report.check(name, fine, f"{summary['device']}, loss {summary['final_loss']:.3f}")


def run(out: Path, **flags: Any) -> Run:
    """A training run of one rank."""
    return launch("helpers.train", out=out, show=False, **SMALL | flags)


def profile(report: Report) -> None:
    model, seq_len = ("gpt2-tiny", 64) if report.tiny else ("gpt2", 512)
    size = {"seq_len": seq_len, "precision": "bf16"}
    with tempfile.TemporaryDirectory() as folder:
        traced = run(Path(folder) / "run", model=model, steps=8, profile="4:6", **size)
        findings = traced.findings["words"].tolist()
        with gzip.open(traced.path / "traces" / "rank-0.json.gz") as trace:
            events = json.load(trace)["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    words = f"{kernels} of {len(events)} events"
    report.check("the trace has the GPU's kernels", not CUDA or kernels > 100, words)
    report.figure("findings", findings)


def notebook(report: Report) -> None:
    number = "0" if report.tiny else "3"
    done = subprocess.run(
        [sys.executable, "scripts/notebooks/execute.py", number],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    report.check(f"notebook {number} runs to its end", done.returncode == 0, "".join(last))
