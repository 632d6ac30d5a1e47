"""Seconds of a training step: blocks, both ends, messages that show, the pipeline, the update.

    time = step_time(job, cluster)
    time.total_s, time.bubble_s, time.tensor_s

Messages of the data axes run beside computing as far as it lasts; only the rest shows. The stages
go through the schedule simulator, so uneven ones and slow links count as they would.
"""

import math
from dataclasses import dataclass, fields
from operator import attrgetter

from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.makespan import makespan_s, near_makespan_s, quick_makespan_s, turns_s
from helpers.planner.time.overlapped_messages import late_data_s, shared_s
from helpers.planner.time.stage_time import StageTime, stage_times, with_data_messages

# a parameter: reads weight, gradient, two moments; writes weight and moments
ADAM_BYTES = {"adamw": 28, "adamw8bit": 16}
NORM_BYTES = 12  # the gradient is read for its norm, read and written to be scaled
COPY_BYTES = 6  # a float32 master is read, its copy in 16 bits written


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go, on the busiest rank of the pipeline.

    compute_s: forward and backward. again_s: recomputation. tensor_s: messages of the tensor axis.
    context_s: messages of the context axis, as far as they show.
    bubble_s: waiting for other stages and their messages. data_s: messages of the data axes, as
    far as they show. optimizer_s: the update. host_s: waiting for the host, which starts all that
    the device does and copies what is offloaded. straggle_s: waiting for the slowest device.
    """

    compute_s: float
    again_s: float
    tensor_s: float
    context_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float
    host_s: float = 0.0
    straggle_s: float = 0.0

    @property
    def total_s(self) -> float:
        return math.fsum(getattr(self, field.name) for field in fields(self))


PARTS = tuple(map(attrgetter, ("again_s", "tensor_s", "context_s", "host_s", "data_s")))
MAKESPANS = {"exact": makespan_s, "near": near_makespan_s, "quick": quick_makespan_s}


def step_time(
    job: Job,
    cluster: Cluster,
    how: str = "exact",
    alone: list[StageTime] | None = None,
) -> StepTime:
    """Seconds of one step.

    Args:
        how: walk the schedule in the simulator (`exact`), some of it (`near`), or take its closed
            form, which is faster (`quick`).
        alone: `stage_times(job, cluster)`, where they are known.

    Raises:
        UserError: the devices have no arithmetic in the plan's precision.
    """
    alone, m = alone or stage_times(job, cluster), job.microbatches
    stages = with_data_messages(job, cluster, alone)
    busy_s = [m * sum(stages[s].busy_s for s in job.stages_of(rank)) for rank in range(job.plan.pp)]
    slowest = max(range(job.plan.pp), key=busy_s.__getitem__)
    whole_s = max(MAKESPANS[how](job, cluster, stages), turns_s(job, cluster, stages))
    of_slowest = [stages[stage] for stage in job.stages_of(slowest)]
    again_s, tensor_s, context_s, host_s, data_s = (
        m * sum(map(part, of_slowest)) for part in PARTS
    )
    late_s = _late_s(job, cluster, stages, whole_s)
    late_s += max(shared_s(job, cluster, rank) for rank in {0, slowest, job.plan.pp - 1})
    return StepTime(
        compute_s=busy_s[slowest] - again_s - tensor_s - context_s - host_s - data_s,
        again_s=again_s,
        tensor_s=tensor_s,
        context_s=context_s,
        bubble_s=whole_s - busy_s[slowest],
        data_s=data_s + late_s,
        optimizer_s=optimizer_s(job, cluster),
        host_s=host_s,
        straggle_s=straggling(cluster) * (whole_s + late_s),
    )


def _late_s(job: Job, cluster: Cluster, stages: list[StageTime], whole_s: float) -> float:
    """Seconds by which the last messages of the data axes are over after the pipeline. A rank sends
    its own when its last backward is over, and that is followed by those of all earlier stages; but
    for gradients of weights, which are made after them."""
    if job.plan.dp * job.plan.cp == 1:
        return 0.0
    seen: list[tuple[StageTime, ...]] = []
    latest_s = before_s = 0.0
    for rank in range(job.plan.pp):
        own = tuple(map(stages.__getitem__, job.stages_of(rank)))
        if own not in seen:  # of those that are alike, the first ends last
            seen.append(own)
            forward_s = sum(stage.forward_s for stage in own)
            backward_s = sum(stage.input_s + stage.weight_s for stage in own)
            late_s = late_data_s(job, cluster, rank, forward_s, backward_s)
            busy_s = job.microbatches * (forward_s + backward_s)
            latest_s = max(latest_s, max(busy_s, whole_s - before_s) + late_s)
        if not job.plan.splits_backward:
            before_s += stages[rank].input_s + stages[rank].weight_s
    return latest_s - whole_s


def straggling(cluster: Cluster) -> float:
    """By what share a step is longer than a node's mean, because all wait for the slowest node:
    the largest of n normal deviations is near sqrt(2·ln n) of them.

    Source: Cramér 1946, Mathematical Methods of Statistics, section 28.6.
    """
    return cluster.deviation * math.sqrt(2 * math.log(cluster.nodes))


def free_data_s(job: Job, cluster: Cluster, alone: list[StageTime]) -> float:
    """Seconds of a step if its data axes and its update were free: no sharding takes less."""
    return max(quick_makespan_s(job, cluster, alone), turns_s(job, cluster, alone))


def optimizer_s(job: Job, cluster: Cluster) -> float:
    """Seconds of the update of the pipeline rank that has most to update: every parameter's state
    goes through memory once, and its gradient twice more for the norm.

    Source: Loshchilov and Hutter 2019, algorithm 2; the engine's precision/optimizer.py.
    """
    plan = job.plan
    largest = job.rank_of[job.layers.index(max(job.layers))]
    updated = max(map(job.trained_of, {0, largest, plan.pp - 1})) / plan.shards
    moved = updated * (
        ADAM_BYTES[job.optimizer] + NORM_BYTES + (COPY_BYTES if job.element_bytes == 2 else 0)
    )
    turns = 1.0
    if cluster.together is not None:
        turns = max(1.0, plan.world_size / cluster.together)
    return turns * moved / cluster.memory_bytes_per_s + 2 * cluster.operation_s
