"""Seconds of each pipeline stage in one micro-batch: its blocks, and the ends of the model."""

from dataclasses import dataclass, replace

from helpers.planner.hardware.cluster import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.block_time import BlockTime, block_time, embedding_s, head_s
from helpers.planner.time.overlapped_messages import shown_data_s
from helpers.planner.time.pipeline_messages import link_s


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage and one micro-batch: F, I and W of the schedule; and how much of them is
    recomputation, messages of the tensor axis, and messages of the context axis and of the data
    axes that show."""

    forward_s: float
    input_s: float
    weight_s: float
    again_s: float
    tensor_s: float
    context_s: float = 0.0
    data_s: float = 0.0

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.input_s + self.weight_s


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


def with_data_messages(job: Job, cluster: Cluster, alone: list[StageTime]) -> list[StageTime]:
    """The stages with what shows of the data axes' messages."""
    if job.plan.dp * job.plan.cp == 1:
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
    forward_s = layers * (block.forward_s + block.tensor_forward_s + block.context_forward_s)
    context_back_s = block.context_backward_s + block.context_again_s
    input_s = layers * (block.input_s + block.again_s + context_back_s)
    input_s += layers * (block.tensor_backward_s + block.tensor_again_s)
    tensor_s = layers * (block.tensor_forward_s + block.tensor_backward_s + block.tensor_again_s)
    context_s = layers * (block.context_forward_s + context_back_s)
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
    return StageTime(forward_s, input_s, weight_s, layers * block.again_s, tensor_s, context_s)
