"""What operations and messages take in real steps, too small to compute much, on all ranks at once.

    cluster = with_small_steps(cluster, "operation_s", device)     # on every rank of a group

An operation is more than its kernel: a module is called, views are made, autograd notes it and runs
it backward, and ranks that share cores find their caches full of each other's. A message is more
than its way: hooks are called, parts are packed, whoever waits has to be woken. The formulas count
the operations that move data, and the messages, and these bear all the rest. So small models take
steps, laid out by one axis after the other. An operation takes what the formulas need to come, in
the mean, to the seconds of a step that has few messages, and then a message what they need for one
that has many.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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

MODEL, WORDS, SEQ_LEN = "gptj-tiny", 1024, 64
HEAD, LAYERS = 32, 8  # a head's width, of a head for each rank; layers at least
WARM, TIMED = 5, 25  # steps
LEAST_S, MOST_S, HALVINGS = 1e-8, 1e-1, 28  # between which such seconds are looked for
ROUNDS = 4
Step = tuple[Job, float]  # with the seconds that it took


def with_small_steps(cluster: Cluster, field: str, device: torch.device) -> Cluster:
    """The cluster with what such steps say of operations and of messages inside a node.

    Args:
        cluster: all else that was measured, the same on all ranks.
        field: of the cluster, that operations are to bear.
    """
    few, many = small_jobs(dist.get_world_size())
    return fitted(
        cluster, field, *([(job, _step_s(job, device)) for job in jobs] for jobs in (few, many))
    )


def fitted(cluster: Cluster, field: str, few: Sequence[Step], many: Sequence[Step]) -> Cluster:
    """The same of steps that were measured: of those with few messages, and those with many."""

    def with_operation(found: Cluster, seconds: float) -> Cluster:
        return replace(found, **{field: seconds})

    def with_message(found: Cluster, seconds: float) -> Cluster:
        longer = {
            kind: replace(link, latency_s=link.latency_s + seconds)
            for kind, link in cluster.measured.items()
            if kind != "send"  # a pipeline's, which are with the few
        }
        return replace(found, measured=cluster.measured | longer)

    found = cluster
    for _ in range(ROUNDS):  # each is a little of the other's steps, too
        found = _fitted(found, with_operation, few)
        found = _fitted(found, with_message, many) if many else found
    return found


def _fitted(
    found: Cluster, changed: Callable[[Cluster, float], Cluster], steps: Sequence[Step]
) -> Cluster:
    """The cluster with the seconds that bring the formulas, in the mean, to what was measured."""

    def too_little(seconds: float) -> bool:
        machine = changed(found, seconds)
        return mean(step_time(job, machine).total_s / step_s for job, step_s in steps) < 1

    low, high = LEAST_S, MOST_S
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return changed(found, high)


def small_jobs(ranks: int) -> tuple[list[Job], list[Job]]:
    """A row for each rank, laid out over all of them by one axis after the other: by those with few
    messages, and by those with some in every block."""
    shape = model_shape(_config(ranks))

    def jobs(*axes: str) -> list[Job]:
        plans = [ParallelPlan(**{axis: ranks}, precision="fp32") for axis in axes]
        return [make_job(shape, plan, ranks, SEQ_LEN) for plan in plans]

    if ranks == 1:
        return jobs("dp_replicate"), []
    return jobs("dp_replicate", "pp"), jobs("dp_shard", "tp")


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
    ids = torch.zeros(job.batch, SEQ_LEN, dtype=torch.long)
    seconds = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        trainer.step(ids, ids.clone())
        seconds.append(time.perf_counter() - began)
    found = [median(seconds[WARM:])]
    dist.broadcast_object_list(found)
    return found[0]
