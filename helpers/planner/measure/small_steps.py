"""What operations and messages take in real steps, too small to compute much, on all ranks at once.

    cluster = with_small_steps(cluster, device)     # on every rank of a group

An operation is more than its kernel: a module is called, views are made, autograd notes it and runs
it backward, and ranks that share cores find their caches full of each other's. So is a product
between others, where ranks share a core. A message is more than its way: hooks are called, parts
are packed, whoever waits has to be woken. The formulas count the operations that move data, the
products and the messages, and these bear all the rest. So small models take steps, laid out by one
axis after the other, and each thing takes what the formulas need to come, in the mean, to the
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
HEAD, LAYERS = 32, 8  # a head's width, of a head for each rank; layers at least
WARM, TIMED = 5, 25  # steps
FEW, MANY = 64, 512  # tokens of a rank
STEPS = {  # what is found from steps of so many tokens a rank, laid out by each of these axes
    "operations": (FEW, ("dp_replicate", "pp")),
    "products": (MANY, ("dp_replicate", "pp")),
    "all-reduces": (FEW, ("tp",)),
    "gathers": (FEW, ("tp",)),  # of the tensor axis, sequence parallel
    "units": (FEW, ("dp_shard",)),  # of ZeRO-3
}
KINDS = {"all-reduces": ("all_reduce",), "gathers": ("all_gather", "reduce_scatter")}
SECONDS, TIMES, HALVINGS = (1e-8, 1e-1), (1.0, 8.0), 28  # between which a value is looked for
ROUNDS = 4
Step = tuple[Job, float]  # with the seconds that it took


def with_small_steps(cluster: Cluster, device: torch.device) -> Cluster:
    """The cluster with what such steps say of operations, of products where these are a
    processor's, and of messages inside a node.

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
    message, or with products and attention that take so many times as long."""
    if what == "units":
        return replace(found, unit_s=value)
    if what == "operations":
        # a GPU's host starts its operations, a processor is its own
        field = "operation_s" if before.device == "cpu" else "host_operation_s"
        return replace(found, **{field: value})
    if what == "products":
        names = ("matmul_flops", "attention_flops")
        rates = {name: {k: v / value for k, v in getattr(before, name).items()} for name in names}
        return replace(found, **rates)
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

    low, high = TIMES if what == "products" else SECONDS
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return with_value(found, high)


def small_jobs(cluster: Cluster) -> dict[str, list[Job]]:
    """A row for each rank, laid out over all of them by one axis after the other, by what is found
    from their steps."""
    ranks = cluster.devices
    shape = model_shape(_config(ranks))

    def jobs(what: str) -> list[Job]:
        seq_len, axes = STEPS[what]
        split = {"sequence_parallel": what == "gathers", "precision": "fp32"}
        plans = [ParallelPlan(**{axis: ranks}, **split) for axis in axes]
        return [make_job(shape, plan, ranks, seq_len) for plan in plans]

    if ranks == 1:
        return {"operations": jobs("operations")[:1]}
    # a GPU's own products wait for nobody, and a small model's are too short to say more of them
    left_out = () if cluster.device == "cpu" else ("products",)
    return {what: jobs(what) for what in STEPS if what not in left_out}


def _config(ranks: int) -> Any:
    width = {"n_embd": HEAD * ranks, "n_head": ranks, "rotary_dim": HEAD // 2}
    return load_config(MODEL, **width, n_layer=-(-LAYERS // ranks) * ranks, vocab_size=WORDS)


def _step_s(job: Job, device: torch.device) -> float:
    """The median of some steps, the same number on all ranks."""
    if device.type == "cpu":
        keep_freed_memory()  # as `distributed` does
    mesh = job.plan.mesh(device.type)
    model = load_model(MODEL, job.plan, mesh, config=_config(dist.get_world_size()), device=device)
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
