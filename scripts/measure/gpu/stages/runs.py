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

AT_ONCE = 4
SMALL = ("--model", "gptj-tiny", "--batch-size", 8, "--seq-len", 64)
QLORA = ("--task", "instruct", "--lora-rank", 4, "--quantize", "nf4", "--precision", "bf16")
WAYS = {
    "bf16": ("--precision", "bf16"),
    "checkpoints in the background": ("--background", "--checkpoint-every", 2),
    "fp16": ("--precision", "fp16"),
    "selective": ("--activation", "selective", "--precision", "bf16"),
    "offload": ("--offload", "--activation", "full"),
    "save": ("--save",),
    "qlora": ("--model", "falcon-tiny", *QLORA, "--save", "--merge"),
    "adamw8bit": ("--optimizer", "adamw8bit"),
}


def train(report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder, report.attempt("resume to the same losses"):
        whole, again = Path(folder) / "whole", Path(folder) / "again"
        run(whole, *SMALL, "--steps", 8, "--checkpoint-every", 4)
        fourth = whole / "checkpoints" / "step-00000004"
        run(again, *SMALL, "--steps", 8, "--resume", fourth)
        pairs = zip(losses(whole)[-4:], losses(again)[-4:], strict=True)
        off = max(abs(one - other) / one for one, other in pairs)
        report.check("resume to the same losses", off < (1e-4 if CUDA else 1e-6), f"{off:.1e}")
    with ThreadPoolExecutor(AT_ONCE) as pool:  # for most of its time a run starts
        list(pool.map(lambda name: train_by(report, name), WAYS))


def train_by(report: Report, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder, report.attempt(name):
        summary = run(Path(folder) / "run", *SMALL, "--steps", 5, *WAYS[name])
        fine = summary["status"] == "done" and math.isfinite(summary["final_loss"])
        report.check(name, fine, f"{summary['device']}, loss {summary['final_loss']:.3f}")


def run(out: Path, *flags: Any) -> dict[str, Any]:
    """A training run of one rank; its summary."""
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    command = [*starter, "-m", "helpers.train", "--out", str(out), *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr[-600:])
    return json.loads((out / "summary.json").read_text())


def losses(out: Path) -> list[float]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def profile(report: Report) -> None:
    model = ("--model", "gpt2-tiny" if report.tiny else "gpt2", "--precision", "bf16")
    size = ("--batch-size", 8, "--seq-len", 64 if report.tiny else 512)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run(out, *model, *size, "--steps", 8, "--profile", "4:6")
        found = json.loads((out / "findings.json").read_text())["findings"]
        with gzip.open(out / "traces" / "rank-0.json.gz") as trace:
            events = json.load(trace)["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    words = f"{kernels} of {len(events)} events"
    report.check("the trace has the GPU's kernels", not CUDA or kernels > 100, words)
    report.figure("findings", [finding["words"] for finding in found])


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
