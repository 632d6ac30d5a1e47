"""What operations and messages take in real steps of small models, on all ranks at once.

    cluster = with_small_steps(cluster, device)     # on every rank of a group

An operation is more than its kernel: a module is called, views are made, autograd notes it and runs
it backward. All computing takes longer between other computing than alone, most where ranks that
share cores find their caches full of each other's. A message is more than its way: hooks are
called, parts are packed, whoever waits has to be woken. The formulas count operations, what they
compute and move, and messages, and these bear all the rest. So small models take steps, laid out by
one axis after the other, and each thing takes what the formulas need to come, in the mean, to the
seconds of steps that have most of it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist

from helpers.engine.memory.cpu_allocator import keep_freed_memory
from helpers.engine.models.configurations import load_config
from helpers.engine.parallelize import load_model
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.shape.families import model_shape
from helpers.planner.time.step_time import step_time

MODEL, WORDS = "gptj-tiny", 1024
HEAD = 32  # a head's width
HEADS, LAYERS = 8, (4, 8)  # of the wider model; layers at least, of the wider and the narrow one
WARM, TIMED = 4, 15  # steps
FEW, MANY = 64, 512  # tokens of a rank
STEPS = {  # what is found from steps of so many tokens a rank, laid out by each of these axes
    "operations": (FEW, ("dp_replicate", "pp")),
    "computing": (MANY, ("dp_replicate", "pp")),
    "all-reduces": (FEW, ("tp",)),
    "gathers": (FEW, ("tp",)),  # of the tensor axis, sequence parallel
    "units": (FEW, ("dp_shard",)),  # of ZeRO-3
}
KINDS = {"all-reduces": ("all_reduce",), "gathers": ("all_gather", "reduce_scatter")}
SECONDS, TIMES, HALVINGS = (1e-8, 1e-1), (1.0, 8.0), 28  # between which a value is looked for
ROUNDS = 4
Step = tuple[Job, float]  # with the seconds that it took


def with_small_steps(cluster: Cluster, device: torch.device) -> Cluster:
    """The cluster with what such steps say of operations and of messages inside a node.

    Args:
        cluster: all else that was measured, the same on all ranks.
    """
    steps = {
        what: [(job, _step_s(job, device)) for job in jobs]
        for what, jobs in small_jobs(cluster).items()
    }
    return fitted(cluster, steps)


def fitted(cluster: Cluster, steps: dict[str, list[Step]]) -> Cluster:
    """The same of steps that were measured, by what is found from them."""
    found = cluster
    for _ in range(ROUNDS):  # each is a little of the others' steps, too
        for what, some in steps.items():
            found = _fitted(found, partial(_with, cluster, what), some, what)
    return found


def _with(before: Cluster, what: str, found: Cluster, value: float) -> Cluster:
    """`found` with seconds of an operation or a unit, with more of them than `before` has for a
    message, or with so many times the seconds of all computing."""
    if what == "units":
        return replace(found, unit_s=value)
    if what == "operations":
        # a GPU's host starts its operations, a processor is its own
        field = "operation_s" if before.device == "cpu" else "host_operation_s"
        return replace(found, **{field: value})
    if what == "computing":
        names = ("matmul_flops", "attention_flops")
        rates = {name: {k: v / value for k, v in getattr(before, name).items()} for name in names}
        return replace(found, others_bytes_per_s=before.others_bytes_per_s / value, **rates)
    links = {kind: before.measured[kind] for kind in KINDS[what]}
    longer = {k: replace(link, latency_s=link.latency_s + value) for k, link in links.items()}
    return replace(found, measured=found.measured | longer)


def _fitted(
    found: Cluster,
    with_value: Callable[[Cluster, float], Cluster],
    steps: Sequence[Step],
    what: str,
) -> Cluster:
    """The cluster with the value that brings the formulas, in the mean, to what was measured."""

    def too_little(value: float) -> bool:
        machine = with_value(found, value)
        return mean(step_time(job, machine).total_s / step_s for job, step_s in steps) < 1

    low, high = TIMES if what == "computing" else SECONDS
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return with_value(found, high)


def small_jobs(cluster: Cluster) -> dict[str, list[Job]]:
    """A row for each rank, laid out over all of them by one axis after the other, by what is found
    from their steps."""
    ranks = cluster.devices

    def jobs(what: str) -> list[Job]:
        seq_len, axes = STEPS[what]
        shape = model_shape(_config(ranks, seq_len))
        split = {"sequence_parallel": what == "gathers", "precision": "fp32"}
        plans = [ParallelPlan(**{axis: ranks}, **split) for axis in axes]
        return [make_job(shape, plan, ranks, seq_len) for plan in plans]

    if ranks == 1:
        return {"operations": jobs("operations")[:1]}
    # a GPU's ranks share nothing, and these steps are too small to say how it computes
    left_out = () if cluster.device == "cpu" else ("computing",)
    return {what: jobs(what) for what in STEPS if what not in left_out}


def _config(ranks: int, tokens: int) -> Any:
    """Narrow, with a head for each rank, where the number of operations and messages is what takes
    time; wider where computing is."""
    heads, layers = (HEADS, LAYERS[0]) if tokens == MANY else (ranks, LAYERS[1])
    width = {"n_embd": HEAD * heads, "n_head": heads, "rotary_dim": HEAD // 2}
    return load_config(MODEL, **width, n_layer=-(-layers // ranks) * ranks, vocab_size=WORDS)


def _step_s(job: Job, device: torch.device) -> float:
    """The median of some steps, the same number on all ranks."""
    if device.type == "cpu":
        keep_freed_memory()  # as `distributed` does
    mesh = job.plan.mesh(device.type)
    config = _config(dist.get_world_size(), job.seq_len)
    model = load_model(MODEL, job.plan, mesh, config=config, device=device)
    trainer = Trainer(model, job.plan, mesh, lr=1e-4)
    ids = torch.zeros(job.batch, job.seq_len, dtype=torch.long)
    seconds = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        trainer.step(ids, ids.clone())
        seconds.append(time.perf_counter() - began)
    found = [median(seconds[WARM:])]
    dist.broadcast_object_list(found)
    return found[0]
