"""Seconds of each pipeline stage in one micro-batch: its blocks, and the ends of the model."""

from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import NamedTuple

from helpers.planner.hardware.devices import Cluster
from helpers.planner.memory.activations import sent_out_bytes
from helpers.planner.memory.adapted import frozen
from helpers.planner.model.job_checks import check_timed
from helpers.planner.model.training_job import Job
from helpers.planner.shape.kinds import Mix
from helpers.planner.shape.parameters import experts_share
from helpers.planner.shape.shape import Shape
from helpers.planner.time.block_time import (
    BlockTime,
    beside_products,
    block_time,
    start_s,
    tensor_s,
)
from helpers.planner.time.overlapped_messages import shown_data_s, shown_expert_s
from helpers.planner.time.pipeline_messages import link_s
from helpers.planner.time.roofline import product_s

ENDS = (8, 20)  # operations of the embedding, and of last norm, head and loss, each way


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage and one micro-batch: F, I and W of the schedule; and how much of them is
    recomputation, messages of the tensor axis, messages of the context axis that show, waiting for
    the host and for its copies, and messages of the data axes that show."""

    forward_s: float
    input_s: float
    weight_s: float
    again_s: float
    tensor_forward_s: float
    tensor_backward_s: float
    context_s: float = 0.0
    host_s: float = 0.0
    data_s: float = 0.0

    @property
    def tensor_s(self) -> float:
        return self.tensor_forward_s + self.tensor_backward_s

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.input_s + self.weight_s


NUMBERS = attrgetter(*(field.name for field in fields(StageTime)))


def stage_times(job: Job, cluster: Cluster) -> list[StageTime]:
    """Seconds of every stage, in the model's order, without the messages of the data axes: the same
    for all plans that differ in how they shard. Where rows do not divide by micro-batches, of which
    some have one more then, in the mean.

    Raises:
        UserError: as check_timed.
    """
    check_timed(job.shape)
    largest, m = _of_largest(job, cluster), job.microbatches
    fewer, larger = divmod(job.rows, m)
    if not larger or not fewer:  # a micro-batch without rows computes one nonetheless
        return largest
    others = _of_largest(replace(job, batch=fewer * m * job.plan.dp), cluster)
    return [_mean(one, other, larger / m) for one, other in zip(largest, others)]


def _mean(one: StageTime, other: StageTime, share: float) -> StageTime:
    """Of two times of a stage, of which the first has this share."""
    both = zip(NUMBERS(one), NUMBERS(other))
    return StageTime(*[share * of_one + (1 - share) * of_other for of_one, of_other in both])


def _of_largest(job: Job, cluster: Cluster) -> list[StageTime]:
    """Seconds of every stage, of a micro-batch with as many rows as any has."""
    blocks: dict[Mix, BlockTime] = {}
    seen: dict[tuple[int, bool, bool, Mix], StageTime] = {}
    stages = []
    for stage, layers in enumerate(job.layers):
        mix = job.mix_of((stage,)) if job.shape.kinds else ()
        key = (layers, stage == 0, stage == len(job.layers) - 1, mix)
        if key not in seen:
            own = job.on((stage,))
            if mix not in blocks:
                blocks[mix] = block_time(own, cluster)
            seen[key] = _stage_time(own, cluster, blocks[mix], stage)
        stages.append(seen[key])
    return stages


def with_data_messages(job: Job, cluster: Cluster, alone: list[StageTime]) -> list[StageTime]:
    """The stages with what shows of the data axes' messages."""
    if job.plan.dp * job.plan.cp == 1:
        return alone
    seen: dict[tuple[StageTime, int, int, Mix], StageTime] = {}
    with_messages = []
    for time, rank in zip(alone, job.rank_of):
        # ranks that are alike have the same messages
        mix = job.mix_of(job.stages_of(rank)) if job.shape.kinds else ()
        key = (time, job.layers_of(rank), job.end_parameters(rank), mix)
        if key not in seen:
            seen[key] = _with_data_messages(job, cluster, time, rank)
        with_messages.append(seen[key])
    return with_messages


def _with_data_messages(job: Job, cluster: Cluster, time: StageTime, rank: int) -> StageTime:
    forward_s, backward_s = shown_data_s(job, cluster, rank, time)
    if job.plan.ep > 1:
        of_experts = shown_expert_s(job, cluster, rank)
        forward_s, backward_s = forward_s + of_experts[0], backward_s + of_experts[1]
    return replace(
        time,
        forward_s=time.forward_s + forward_s,
        input_s=time.input_s + backward_s,
        data_s=forward_s + backward_s,
    )


def _stage_time(job: Job, cluster: Cluster, block: BlockTime, stage: int) -> StageTime:
    layers, first, last = job.layers[stage], stage == 0, stage == len(job.layers) - 1
    tensor_forward_s = layers * block.tensor_forward_s
    tensor_backward_s = layers * block.tensor_backward_s
    context_forward_s = layers * block.context_forward_s
    context_backward_s = layers * block.context_backward_s
    forward_s = layers * block.forward_s + tensor_forward_s + context_forward_s
    input_s = layers * (block.input_s + block.again_s) + tensor_backward_s + context_backward_s
    weight_s = layers * block.weight_s
    host_forward_s = layers * block.host_forward_s
    host_backward_s = layers * block.host_backward_s
    for here, end in ((first, embedding_time), (last, head_time)):
        if here:
            end = end(job, cluster)
            forward_s += end.forward_s + end.tensor_forward_s
            input_s += end.backward_s + end.tensor_backward_s
            tensor_forward_s += end.tensor_forward_s
            tensor_backward_s += end.tensor_backward_s
            host_forward_s += end.host_s
            host_backward_s += end.host_s
    copies_s = layers * offloaded_s(job, cluster)
    forward_waits_s = max(0.0, host_forward_s - forward_s, copies_s - forward_s)
    weight_waits_s, host_input_s = 0.0, host_backward_s - weight_s
    if job.plan.splits_backward:  # into two actions, each of which waits for its own operations
        at_once_s = weight_s * _experts_among_products(job.shape)
        input_s, weight_s = input_s + at_once_s, weight_s - at_once_s
        host_weight_s = layers * len(job.shape.block) * start_s(cluster, job.program)
        host_input_s = host_backward_s - host_weight_s
        weight_waits_s = max(0.0, host_weight_s - weight_s)
        weight_s += weight_waits_s
    input_waits_s = max(0.0, host_input_s - input_s, copies_s - input_s - weight_s)
    forward_s, input_s = forward_s + forward_waits_s, input_s + input_waits_s
    if job.program.waits_for_sends and len(job.layers) > 1:
        forward_s += link_s(job, cluster)
        input_s += link_s(job, cluster)
    return StageTime(
        forward_s,
        input_s,
        weight_s,
        layers * block.again_s,
        tensor_forward_s,
        tensor_backward_s,
        context_forward_s + context_backward_s,
        forward_waits_s + input_waits_s + weight_waits_s,
    )


def _experts_among_products(shape: Shape) -> float:
    """Of the products of all blocks, the share of experts', whose gradients do not come later."""
    mlp, whole = (sum(one.parameters for one in some) for some in (shape.block[-2:], shape.block))
    return experts_share(shape) * mlp / whole


def offloaded_s(job: Job, cluster: Cluster) -> float:
    """Seconds in which what a block keeps of a micro-batch is copied to host memory, or back.

    Source: Ren et al. 2021, ZeRO-Offload, section 4: copies run beside computing.
    """
    if not job.plan.offload:
        return 0.0
    kept_as = job if job.adapters is None else frozen(job)
    return sent_out_bytes(kept_as) / cluster.host_bytes_per_s


class EndTime(NamedTuple):
    """Seconds of an end of the model and one micro-batch, messages of the tensor axis apart; and of
    starting it all, forward and as much again backward."""

    forward_s: float
    backward_s: float
    tensor_forward_s: float
    tensor_backward_s: float
    host_s: float


def embedding_time(job: Job, cluster: Cluster) -> EndTime:
    """Of the look-up: rows are read and written once, and their gradients added to the table's."""
    once_s = 2 * job.tokens * job.shape.hidden * job.element_bytes / cluster.memory_bytes_per_s
    messages = tensor_s(job, cluster, job.rank_of[0], "embedding")
    return EndTime(once_s, 2 * once_s, *messages, ENDS[0] * start_s(cluster, job.program))


def head_time(job: Job, cluster: Cluster) -> EndTime:
    """Of the output layer and the loss: three products over the vocabulary, which the engine does
    all in its forward, and the logits read and written."""
    plan, tokens, hidden = job.plan, job.tokens, job.shape.hidden
    rows = job.vocab_rows
    first_s, *other_s = (
        product_s(
            cluster,
            beside_products(plan.precision),
            *sizes,
            job.element_bytes,
            reached=job.program.products_reached,
        )
        for sizes in ((tokens, hidden, rows), (tokens, rows, hidden), (rows, tokens, hidden))
    )
    logits_s = cluster.others_s(tokens * rows * job.program.logit_bytes)
    messages = tensor_s(job, cluster, job.rank_of[-1], "head", "loss")
    if job.adapters is not None:  # a frozen head has no gradient
        other_s = other_s[:1]
    all_s = first_s + sum(other_s) + logits_s
    forward_s = all_s if job.program.gradients_in_loss else first_s + logits_s / 2
    host_s = ENDS[1] * start_s(cluster, job.program)
    return EndTime(forward_s, all_s - forward_s, *messages, host_s)
