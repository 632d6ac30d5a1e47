"""What a step is made of: its kernels by their time, and what is alive when memory is fullest."""

from collections import Counter
from typing import Any

import torch
from report import CUDA, DEVICE, Report, in_a_row, one_by_one
from torch.profiler import ProfilerActivity, profile

MOST = 40  # rows of a table
EVENTS = 400_000  # of the allocator that are kept
OWN = "/torch/nn/modules/module.py"  # a frame that says nothing of where
STEPS = {  # source, plan, rows of 1,024 tokens
    "GPT-2": ("gpt2", {}, 16),
    "GPT-2, compiled": ("gpt2", {"compile": True}, 16),
    "GPT-J": ("gptj-6b", {}, 8),
    "GPT-J, 8 micro-batches, compiled": ("gptj-6b", {"compile": True, "microbatches": 8}, 32),
}


def parts(report: Report) -> None:
    """Kernels of each step of STEPS, and GPT-J's memory with six layers."""
    from helpers import load_config

    for name, (source, fields, rows) in STEPS.items():
        if report.tiny and "compile" in fields:
            continue
        with report.attempt(name):
            config = load_config(f"{source.partition('-')[0]}-tiny" if report.tiny else source)
            kernels(report, name, config, source, fields, 2 if report.tiny else rows)
    if CUDA:
        config = load_config("gptj-6b")
        config.n_layer = 6
        for fields in ({}, {"compile": True}):
            with report.attempt(f"memory by place, {fields}"):
                memory(report, config, fields)


def with_trainer(config: Any, source: str, fields: dict[str, Any], rows: int, look: Any) -> Any:
    """What `look` finds, given a function that takes a step."""
    from helpers import ParallelPlan, Trainer, distributed, load_model

    plan = ParallelPlan(precision="bf16", **fields)
    ids = torch.randint(config.vocab_size, (rows, 1024 if CUDA else 32))
    with distributed(plan, DEVICE) as mesh:
        model = load_model(source, plan, mesh, config=config, device=DEVICE)
        trainer = Trainer(model, plan, mesh, lr=1e-5)
        one_by_one(lambda: trainer.step(ids, ids), 1, warm=1)
        return look(lambda: trainer.step(ids, ids))


def kernels(
    report: Report, name: str, config: Any, source: str, fields: dict[str, Any], rows: int
) -> None:
    def look(step: Any) -> dict[str, Any]:
        step_s = in_a_row(step, 3)
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if CUDA else [])]
        with profile(activities=kinds, acc_events=True) as found:
            one_by_one(step, 1, warm=0)
        times, counts = Counter(), Counter()
        for event in found.events():
            if not CUDA or is_kernel(event):
                times[event.name] += event.time_range.elapsed_us() / 1e3
                counts[event.name] += 1
        busy = {"step_ms": 1e3 * step_s, "kernels": counts.total(), "busy_ms": times.total()}
        return busy | {"ms": {key: [t, counts[key]] for key, t in times.most_common(MOST)}}

    report.figure(name, with_trainer(config, source, fields, rows, look))


def is_kernel(event: Any) -> bool:
    """A kernel, not the span of a region that was marked around several."""
    return "CUDA" in str(event.device_type) and not getattr(event, "is_user_annotation", False)


def memory(report: Report, config: Any, fields: dict[str, Any]) -> None:
    history = torch.cuda.memory

    def look(step: Any) -> dict[str, Any]:
        before = history.memory_allocated()
        history.reset_peak_memory_stats()
        history._record_memory_history(max_entries=EVENTS, context="all", stacks="python")
        one_by_one(step, 1, warm=0)
        events = history._snapshot()["device_traces"][0]
        history._record_memory_history(enabled=None)
        found = {"before_bytes": before, "peak_bytes": history.max_memory_allocated()}
        return found | {"by_place_bytes": fullest(events)}

    found = with_trainer(config, "gptj-6b", fields, 8, look)
    report.figure(f"memory of GPT-J with six layers, {fields or 'eager'}", found)


def fullest(events: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Bytes and number of what is alive at the fullest moment, by the lines that asked for it."""
    now, most, alive, then = 0, 0, {}, {}
    for event in events:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            now += event["size"]
            if now > most:
                most, then = now, dict(alive)
        elif event["action"] == "free_completed" and alive.pop(event["addr"], None):
            now -= event["size"]
    sizes, counts = Counter(), Counter()
    for event in then.values():
        sizes[place(event)] += event["size"]
        counts[place(event)] += 1
    return {key: [size, counts[key]] for key, size in sizes.most_common(MOST)}


def place(event: dict[str, Any]) -> str:
    frames = [f for f in event.get("frames", []) if f["filename"].endswith(".py")]
    lines = [
        f"{f['filename'].rpartition('/')[2]}:{f['line']} {f['name']}"
        for f in frames
        if OWN not in f["filename"]
    ]
    return " < ".join(lines[:3]) or "the backward"
