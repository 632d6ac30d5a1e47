"""What an operation takes in a real step: steps too small to compute much, on all ranks at once.

    operation_s(cluster, "operation_s", device)      # on every rank of the process group

An operation is more than its kernel: a module is called, views are made, autograd notes it and runs
it backward, and ranks that share cores find their caches full of each other's. The formulas count
the operations that move data, and these bear all the rest. So small models take steps, laid out by
data, by stages and by matrices, and an operation takes what the formulas need to come, in the mean,
to the seconds that were measured.
"""

import time
from collections.abc import Sequence
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
HEAD, LAYERS = 32, 1  # a head's width, of a head for each rank; layers of a rank
WARM, TIMED = 5, 25  # steps
LEAST_S, MOST_S, HALVINGS = 1e-8, 1e-1, 60  # between which an operation is looked for


def operation_s(cluster: Cluster, field: str, device: torch.device) -> float:
    """Seconds of an operation.

    Args:
        cluster: all else that was measured, the same on all ranks.
        field: of the cluster, for which they are looked for.
    """
    jobs = small_jobs(dist.get_world_size())
    return fitted_s(cluster, field, jobs, [_step_s(job, device) for job in jobs])


def fitted_s(cluster: Cluster, field: str, jobs: Sequence[Job], step_s: Sequence[float]) -> float:
    """With which the formulas come, in the mean, to the seconds of these jobs' steps."""

    def too_little(each_s: float) -> bool:
        machine = replace(cluster, **{field: each_s})
        return mean(step_time(job, machine).total_s / s for job, s in zip(jobs, step_s)) < 1

    low, high = LEAST_S, MOST_S
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(middle) else (low, middle)
    return high


def small_jobs(ranks: int) -> list[Job]:
    """A row for each rank, laid out over all of them by one axis after the other."""
    axes = ("dp_replicate", "dp_shard", "pp", "tp") if ranks > 1 else ("dp_replicate",)
    plans = [ParallelPlan(**{axis: ranks}) for axis in axes]
    shape = model_shape(_config(ranks))
    return [make_job(shape, replace(plan, precision="fp32"), ranks, SEQ_LEN) for plan in plans]


def _config(ranks: int) -> Any:
    width = {"n_embd": HEAD * ranks, "n_head": ranks, "rotary_dim": HEAD // 2}
    return load_config(MODEL, **width, n_layer=LAYERS * ranks, vocab_size=WORDS)


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
