"""Seconds of a training step: blocks, both ends, messages that show, the pipeline, the update.

    time = step_time(job, cluster)
    time.total_s, time.bubble_s, time.tensor_s

Messages of the data axes run beside computing as far as it lasts; only the rest shows. The stages
go through the schedule simulator, so uneven ones and slow links count as they would.
"""

from dataclasses import dataclass, replace

from helpers.engine.pipeline.simulator import Times, simulate
from helpers.planner.hardware.cluster import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.block_time import BlockTime, block_time, embedding_s, head_s
from helpers.planner.time.data_messages import late_data_s, shown_data_s
from helpers.planner.time.messages import Message, pipeline_messages, seconds

ADAM_BYTES = 28  # a parameter: reads weight, gradient, two moments; writes weight and moments
NORM_BYTES = 12  # the gradient is read for its norm, read and written to be scaled
COPY_BYTES = 6  # a float32 master is read, its copy in 16 bits written


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage and one micro-batch: F, I and W of the schedule; and how much of them is
    recomputation, messages of the tensor axis, and messages of the data axes that show."""

    forward_s: float
    input_s: float
    weight_s: float
    again_s: float
    tensor_s: float
    data_s: float = 0.0

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.input_s + self.weight_s


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of a step go, on the busiest rank of the pipeline.

    compute_s: forward and backward. again_s: recomputation. tensor_s: messages of the tensor axis.
    bubble_s: waiting for other stages and their messages. data_s: messages of the data axes, as
    far as they show. optimizer_s: the update.
    """

    compute_s: float
    again_s: float
    tensor_s: float
    bubble_s: float
    data_s: float
    optimizer_s: float

    @property
    def total_s(self) -> float:
        work_s = self.compute_s + self.again_s + self.tensor_s
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
    stages, m = _with_data(job, cluster, alone or stage_times(job, cluster)), job.microbatches
    busy_s = [m * sum(stages[s].busy_s for s in job.stages_of(rank)) for rank in range(job.plan.pp)]
    slowest = max(range(job.plan.pp), key=busy_s.__getitem__)
    pipeline_s = makespan_s if exact else quick_makespan_s
    whole_s = max(pipeline_s(job, cluster, stages), turns_s(job, cluster, stages))
    mine = [stages[stage] for stage in job.stages_of(slowest)]
    again_s, tensor_s, data_s = (
        m * sum(getattr(stage, part) for stage in mine)
        for part in ("again_s", "tensor_s", "data_s")
    )
    backward_s = sum(stage.input_s + stage.weight_s for stage in mine)
    return StepTime(
        compute_s=busy_s[slowest] - again_s - tensor_s - data_s,
        again_s=again_s,
        tensor_s=tensor_s,
        bubble_s=whole_s - busy_s[slowest],
        data_s=data_s + late_data_s(job, cluster, slowest, backward_s),
        optimizer_s=optimizer_s(job, cluster, slowest),
    )


def free_data_s(job: Job, cluster: Cluster, alone: list[StageTime]) -> float:
    """Seconds of a step if its data axes and its update were free: no sharding takes less."""
    return max(quick_makespan_s(job, cluster, alone), turns_s(job, cluster, alone))


def stage_times(job: Job, cluster: Cluster) -> list[StageTime]:
    """Seconds of every stage, in the model's order, without the messages of the data axes: the same
    for all plans that differ in how they shard."""
    block = block_time(job, cluster)
    seen: dict[tuple[int, bool, bool], StageTime] = {}
    stages = []
    for stage, layers in enumerate(job.layers):
        key = (layers, stage == 0, stage == len(job.layers) - 1)
        if key not in seen:
            seen[key] = _stage_time(job, cluster, block, stage)
        stages.append(seen[key])
    return stages


def _with_data(job: Job, cluster: Cluster, alone: list[StageTime]) -> list[StageTime]:
    """The stages with what shows of the data axes' messages."""
    if job.plan.dp == 1:
        return alone
    seen: dict[int, StageTime] = {}  # stages that are alike are one object
    for stage, time in enumerate(alone):
        if id(time) not in seen:
            backward_s = time.input_s + time.weight_s
            shown = shown_data_s(job, cluster, job.rank_of[stage], time.forward_s, backward_s)
            seen[id(time)] = replace(
                time,
                forward_s=time.forward_s + shown[0],
                input_s=time.input_s + shown[1],
                data_s=sum(shown),
            )
    return [seen[id(time)] for time in alone]


def _stage_time(job: Job, cluster: Cluster, block: BlockTime, stage: int) -> StageTime:
    layers, first, last = job.layers[stage], stage == 0, stage == len(job.layers) - 1
    forward_s = layers * (block.forward_s + block.tensor_forward_s)
    input_s = layers * (block.input_s + block.again_s)
    input_s += layers * (block.tensor_backward_s + block.tensor_again_s)
    tensor_s = layers * (block.tensor_forward_s + block.tensor_backward_s + block.tensor_again_s)
    weight_s = layers * block.weight_s
    for here, end_s in ((first, embedding_s), (last, head_s)):
        if here:
            end_forward_s, end_backward_s, end_tensor_s = end_s(job, cluster)
            forward_s += end_forward_s
            input_s += end_backward_s
            tensor_s += end_tensor_s
    if job.program.waits_for_sends and len(job.layers) > 1:
        forward_s += link_s(job, cluster)
        input_s += link_s(job, cluster)
    return StageTime(forward_s, input_s, weight_s, layers * block.again_s, tensor_s)


def link_s(job: Job, cluster: Cluster) -> float:
    """Seconds of a message from a stage to the next: hidden states of one micro-batch.

    Under sequence parallelism each tensor rank sends its part. Megatron-LM also splits what all
    tensor ranks have alike, and gathers it on the other side.

    Source: arXiv 2104.04473, section 4.1.
    """
    plan = job.plan
    if plan.pp == 1:
        return 0.0
    hidden = job.tokens * job.shape.hidden * job.element_bytes
    split = plan.tp if plan.sequence_parallel or job.program.split_sends else 1
    send = Message("pp", "send", hidden / split, 1, plan.pp, "hidden states", "forward")
    takes_s = seconds(job, cluster, send)
    if split > 1 and not plan.sequence_parallel:
        gather = Message("tp", "all_gather", hidden, 1, plan.tp, "hidden states", "forward")
        takes_s += seconds(job, cluster, gather)
    return takes_s


def makespan_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """Seconds from the first forward to the last backward, by the schedule simulator."""
    waits = 0.0 if job.program.waits_for_sends else link_s(job, cluster)
    times = Times(
        forward_s=[stage.forward_s for stage in stages],
        input_s=[stage.input_s for stage in stages],
        weight_s=[stage.weight_s for stage in stages],
        link_s=waits,
    )
    return simulate(job.plan.schedule_of(job.microbatches), times).makespan_s


def quick_makespan_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """The same in closed form: the slowest rank's work, and filling the pipeline beside it.

    The bubble is the schedule's share of a micro-batch on every other rank: all of it for 1f1b and
    gpipe, 1/v with v virtual stages, F + I - W with zero-bubble, a sixth with zero-bubble-v.

    Source: Zheng et al. 2022 (Alpa), equation 2; the table of schedules.py.
    """
    plan, m = job.plan, job.microbatches
    by_rank = [[stages[s] for s in job.stages_of(rank)] for rank in range(plan.pp)]
    each_s = [sum(stage.busy_s for stage in mine) for mine in by_rank]
    if plan.schedule == "naive":
        return m * (sum(each_s) + 2 * (plan.pp - 1) * link_s(job, cluster))
    if plan.schedule == "gpipe":
        forwards = [stage.forward_s for stage in stages]
        backwards = [stage.input_s + stage.weight_s for stage in stages]
        filled_s = sum(sum(part) + (m - 1) * max(part) for part in (forwards, backwards))
        return filled_s + 2 * (plan.pp - 1) * link_s(job, cluster)
    slowest = max(range(plan.pp), key=each_s.__getitem__)
    filling_s = sum(each_s) - each_s[slowest]
    if plan.schedule == "interleaved":
        filling_s /= plan.stages // plan.pp
    elif plan.schedule == "zero-bubble":
        weights_s = sum(stage.weight_s for mine in by_rank for stage in mine)
        filling_s = max(0.0, filling_s - 2 * weights_s * (plan.pp - 1) / plan.pp)
    elif plan.schedule == "zero-bubble-v":
        filling_s /= 6
    short = max(0, plan.pp - m) if plan.schedule == "interleaved" else 0
    hops = 0.0 if job.program.waits_for_sends else 2 * (plan.pp - 1) * link_s(job, cluster)
    return (m + short) * each_s[slowest] + filling_s + hops


def turns_s(job: Job, cluster: Cluster, stages: list[StageTime]) -> float:
    """Seconds that the pipelines' work takes where ranks share cores: a rank that waits leaves its
    core to another, so a bubble costs nothing, and ranks beyond the cores take turns. Messages were
    measured between such ranks, so they count as they are, those to the next stage too."""
    if cluster.together is None:
        return 0.0
    plan, m = job.plan, job.microbatches
    messages_s = [stage.tensor_s + stage.data_s for stage in stages]
    work_s = sum(stage.busy_s for stage in stages) - sum(messages_s)
    lines = plan.world_size / plan.pp
    shared_s = m * (work_s * lines / min(cluster.together, plan.world_size) + max(messages_s))
    sends_s = [
        sum(one.count * seconds(job, cluster, one) for one in pipeline_messages(job, rank))
        for rank in range(plan.pp)
    ]
    return shared_s + max(sends_s)


def optimizer_s(job: Job, cluster: Cluster, rank: int) -> float:
    """Seconds of the update: every parameter's state goes through memory once, and its gradient
    twice more for the norm.

    Source: Loshchilov and Hutter 2019, algorithm 2; optimizer.py.
    """
    plan = job.plan
    held = job.held(rank) / (plan.dp_shard if plan.dp_shard > 1 else 1)
    moved = held * (ADAM_BYTES + NORM_BYTES + (COPY_BYTES if job.element_bytes == 2 else 0))
    turns = 1.0
    if cluster.together is not None:
        turns = max(1.0, plan.world_size / cluster.together)
    return turns * moved / cluster.memory_bytes_per_s + 2 * cluster.operation_s
