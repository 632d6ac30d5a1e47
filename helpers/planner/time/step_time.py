"""Seconds of a training step: blocks, both ends, messages that show, the pipeline, the update.

    time = step_time(job, cluster)
    time.total_s, time.bubble_s, time.tensor_s

Messages of the data axes run beside computing as far as it lasts; only the rest shows. The stages
go through the schedule simulator, so uneven ones and slow links count as they would.
"""

from dataclasses import dataclass

from helpers.planner.hardware.cluster import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.makespan import makespan_s, quick_makespan_s, turns_s
from helpers.planner.time.overlapped_messages import late_data_s
from helpers.planner.time.stage_time import StageTime, stage_times, with_data_messages

ADAM_BYTES = 28  # a parameter: reads weight, gradient, two moments; writes weight and moments
NORM_BYTES = 12  # the gradient is read for its norm, read and written to be scaled
COPY_BYTES = 6  # a float32 master is read, its copy in 16 bits written


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go, on the busiest rank of the pipeline.

    compute_s: forward and backward. again_s: recomputation. tensor_s: messages of the tensor axis.
    context_s: messages of the context axis, as far as they show.
    bubble_s: waiting for other stages and their messages. data_s: messages of the data axes, as
    far as they show. optimizer_s: the update.
    """

    compute_s: float
    again_s: float
    tensor_s: float
    context_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        work_s = self.compute_s + self.again_s + self.tensor_s + self.context_s
        return work_s + self.bubble_s + self.data_s + self.optimizer_s


def step_time(
    job: Job, cluster: Cluster, exact: bool = True, alone: list[StageTime] | None = None
) -> StepTime:
    """Seconds of one step.

    Args:
        exact: walk the schedule in the simulator; without, take its closed form, which is faster.
        alone: `stage_times(job, cluster)`, where they are known.

    Raises:
        UserError: the devices have no arithmetic in the plan's precision.
    """
    stages, m = (
        with_data_messages(job, cluster, alone or stage_times(job, cluster)),
        job.microbatches,
    )
    busy_s = [m * sum(stages[s].busy_s for s in job.stages_of(rank)) for rank in range(job.plan.pp)]
    slowest = max(range(job.plan.pp), key=busy_s.__getitem__)
    pipeline_s = makespan_s if exact else quick_makespan_s
    whole_s = max(pipeline_s(job, cluster, stages), turns_s(job, cluster, stages))
    of_slowest = [stages[stage] for stage in job.stages_of(slowest)]
    again_s, tensor_s, context_s, data_s = (
        m * sum(getattr(stage, part) for stage in of_slowest)
        for part in ("again_s", "tensor_s", "context_s", "data_s")
    )
    backward_s = sum(stage.input_s + stage.weight_s for stage in of_slowest)
    return StepTime(
        compute_s=busy_s[slowest] - again_s - tensor_s - context_s - data_s,
        again_s=again_s,
        tensor_s=tensor_s,
        context_s=context_s,
        bubble_s=whole_s - busy_s[slowest],
        data_s=data_s + late_data_s(job, cluster, slowest, backward_s),
        optimizer_s=optimizer_s(job, cluster, slowest),
    )


def free_data_s(job: Job, cluster: Cluster, alone: list[StageTime]) -> float:
    """Seconds of a step if its data axes and its update were free: no sharding takes less."""
    return max(quick_makespan_s(job, cluster, alone), turns_s(job, cluster, alone))


def optimizer_s(job: Job, cluster: Cluster, rank: int) -> float:
    """Seconds of the update: every parameter's state goes through memory once, and its gradient
    twice more for the norm.

    Source: Loshchilov and Hutter 2019, algorithm 2; the engine's precision/optimizer.py.
    """
    plan = job.plan
    updated = job.parameters_of(rank) / plan.shards
    moved = updated * (ADAM_BYTES + NORM_BYTES + (COPY_BYTES if job.element_bytes == 2 else 0))
    turns = 1.0
    if cluster.together is not None:
        turns = max(1.0, plan.world_size / cluster.together)
    return turns * moved / cluster.memory_bytes_per_s + 2 * cluster.operation_s
