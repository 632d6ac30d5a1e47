"""What a small step spends its time on: by part, for one process, tp, pp and ZeRO-3.

Every rank has a thread of its own. A part is the time of torch's operations themselves, each
counted without those that it calls, on rank 0; `messages` are those and waiting for them; what is
left of a step is Python between operations: modules, autograd's bookkeeping, the engine's own
lines. The profiler makes each operation longer by a microsecond or so; the parts are scaled to the
seconds of steps without it.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median

import cloudpickle
import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from helpers.commands import markdown
from helpers.engine.memory.cpu_allocator import keep_freed_memory
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.lab.calls.on_ranks import on_ranks

LAYOUTS = {
    "one process": {},
    "tp=2": {"tp": 2},
    "pp=2, 4 micro-batches": {"pp": 2, "microbatches": 4},
    "ZeRO-3": {"dp_shard": 2},
}
PARTS = ("products", "attention", "other operations", "optimizer", "messages", "between them")
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
CARRIED = ("shared_memory:", "gloo:", "c10d::", "wait")
WARM, PLAIN, PROFILED = 5, 30, 10


def part_of(event: FunctionEvent) -> str:
    """By the operation, and by the ranges and operations that it is in."""
    around, one = [], event
    while one is not None:
        around.append(one.name)
        one = one.cpu_parent
    if any(name.startswith(CARRIED) for name in around):
        return "messages"
    if not event.name.startswith("aten::"):
        return "between them"
    if "optimizer" in around:
        return "optimizer"
    if event.name in PRODUCTS:
        return "products"
    return "attention" if "scaled_dot_product" in event.name else "other operations"


def step_parts(
    model: str, sizes: dict[str, int], batch: int, seq: int, degrees: dict[str, int]
) -> tuple[float, dict[str, float]]:
    """On every rank: the median seconds of a step, and the seconds of each part."""
    torch.set_num_threads(1)
    plan = ParallelPlan(**degrees)
    keep_freed_memory()  # as `distributed` does
    mesh = plan.mesh("cpu")
    config = load_config(model, **sizes)
    trainer = Trainer(load_model(model, plan, mesh, config=config), plan, mesh, lr=1e-4)
    ids = torch.randint(config.vocab_size, (batch, seq), generator=torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(WARM + PLAIN):
        began = time.perf_counter()
        trainer.step(ids, ids.clone())
        seconds.append(time.perf_counter() - began)
    step_s = median(seconds[WARM:])
    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(PROFILED):
            trainer.step(ids, ids.clone())
        profiled_s = (time.perf_counter() - began) / PROFILED
    spent: Counter[str] = Counter()
    for event in seen.events():
        spent[part_of(event)] += event.self_cpu_time_total / 1e6 / PROFILED
    spent["between them"] = profiled_s - sum(spent[part] for part in PARTS[:-1])
    return step_s, {part: spent[part] * step_s / profiled_s for part in PARTS}


def measure(
    sizes: dict[str, int], batch: int, seq: int, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """By layout: seconds of a step of GPT-J, and of its parts."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not find this file
    found = {}
    for name, degrees in LAYOUTS.items():
        say(name)
        ranks = ParallelPlan(**degrees).world_size
        given = ("gptj-tiny", sizes, batch, seq, degrees)
        step_s, parts = on_ranks(step_parts, *given, nproc=ranks, timeout_s=300)[0]
        found[name] = {"step": step_s, **parts}
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    head = ("step", *PARTS)
    rows = (
        (name, *(f"{1e3 * seconds[part]:.1f}" for part in head)) for name, seconds in found.items()
    )
    return markdown(("ms", *head), rows)
