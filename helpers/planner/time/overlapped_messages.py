"""Every message of a rank, and seconds of the data axes' that computing does not hide.

ZeRO-3, ZeRO-2    in every micro-batch, beside its forward and backward
DDP, ZeRO-1       once, beside the last backward; new parameters after the update

A program says which of them run beside its computing at all, and how much they slow it down.
"""

from typing import TYPE_CHECKING

from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.context_messages import context_messages
from helpers.planner.time.data_messages import data_messages, expert_messages, shard_axis
from helpers.planner.time.messages import Message, link_of, message_s, seconds
from helpers.planner.time.pipeline_messages import pipeline_messages
from helpers.planner.time.tensor_messages import shared_messages, tensor_messages

if TYPE_CHECKING:
    from helpers.planner.time.stage_time import StageTime


def rank_messages(job: Job, rank: int) -> list[Message]:
    """All that pipeline rank `rank` sends in a step; its first tensor and data rank."""
    messages = (
        *tensor_messages(job, rank),
        *context_messages(job, rank),
        *shared_messages(job, rank),
        *pipeline_messages(job, rank),
        *data_messages(job, rank),
        *expert_messages(job, rank),
    )
    return [sent for sent in messages if sent.count and sent.payload_bytes and sent.ranks > 1]


def shown_data_s(job: Job, cluster: Cluster, rank: int, beside: "StageTime") -> tuple[float, float]:
    """What they add to the forward and to the backward of one of the rank's stages, of one
    micro-batch.

    A unit's parameters are gathered, and its gradients reduced, while another computes; only the
    first unit in is waited for, and what takes longer than the computing. Where a group of the data
    axes lies in one node it waits for the tensor axis, which uses the same wire.

    Args:
        beside: one of the rank's stages, without these messages.

    Source: arXiv 2304.11277 (PyTorch FSDP), section 3.3.
    """
    stages = len(job.stages_of(rank)) * job.microbatches
    messages = data_messages(job, rank)
    parts = (
        ("forward", beside.forward_s, beside.tensor_forward_s),
        ("backward", beside.input_s + beside.weight_s, beside.tensor_backward_s),
    )
    shown = []
    for when, computing_s, tensor_s in parts:
        all_s = first_s = hidden_s = 0.0
        for message in messages:
            if message.when == when:
                one_s = seconds(job, cluster, message)
                all_s += one_s * message.count / stages
                hidden_s += _hidden(job, cluster, message) * one_s * message.count / stages
                first_s = max(first_s, one_s)
        if _in_node(job, cluster):
            computing_s -= tensor_s
        shown.append(_shown_s(job, all_s, first_s, hidden_s, computing_s))
    return tuple(shown)


def shown_expert_s(job: Job, cluster: Cluster, rank: int) -> tuple[float, float]:
    """The same of tokens on their way to experts, and back: a rank computes with what it gathers,
    so nothing hides them; with what writes and reads the tokens of all ranks."""
    stages = len(job.stages_of(rank)) * job.microbatches
    copies = job.program.message_copies / cluster.memory_bytes_per_s
    forward_s = backward_s = 0.0
    for message in expert_messages(job, rank):
        one_s = message_s(message, link_of(job, cluster, message.axis, message.kind))
        all_s = message.count / stages * (one_s + copies * message.payload_bytes)
        if message.when == "forward":
            forward_s += all_s
        else:
            backward_s += all_s
    return forward_s, backward_s


def _shown_s(job: Job, all_s: float, first_s: float, hidden_s: float, room_s: float) -> float:
    """Of all messages, some of which can be hidden behind so much computing, which they slow."""
    hidden_s = min(hidden_s, all_s - min(first_s, all_s), max(0.0, room_s))
    return all_s - hidden_s * (1 - job.program.hidden.slows)


def _hidden(job: Job, cluster: Cluster, message: Message) -> float:
    """The share of such messages that runs beside computing."""
    if not cluster.overlaps:
        return 0.0
    hidden = job.program.hidden
    return hidden.gathers if message.kind == "all_gather" else hidden.sums


def _on_one_wire(job: Job, cluster: Cluster) -> bool:
    """Do replicas sum over the same wire as the ranks that share a copy's state, inside a node or
    between nodes? Then their sums wait for those ranks' messages, as these for each other."""
    axes = (shard_axis(job), "dp_replicate")
    shards, replicas = (link_of(job, cluster, axis).nodes > 1 for axis in axes)
    return shards == replicas


def _in_node(job: Job, cluster: Cluster) -> bool:
    """Do all groups of the data axes lie inside a node?"""
    return link_of(job, cluster, "dp x cp").nodes == 1


def least_data_s(job: Job, cluster: Cluster) -> float:
    """Seconds of the messages beside every micro-batch, on the first pipeline rank: however much
    computing hides them, no step is shorter."""
    return sum(
        message.count * seconds(job, cluster, message)
        for message in data_messages(job, 0)
        if message.when in ("forward", "backward")
    )


def late_data_s(
    job: Job, cluster: Cluster, rank: int, forward_s: float, backward_s: float
) -> float:
    """Seconds after the last backward: sums of gradients that did not fit beside it, of which the
    last bucket starts only at its end, and new parameters on their way to all ranks.

    Args:
        forward_s, backward_s: of the first and the last micro-batch, over the rank's stages.

    Source: Li et al. 2020, PyTorch Distributed, section 3.2.
    """
    sums_s = last_s = after_s = hidden_s = earlier_s = end_s = 0.0
    for message in data_messages(job, rank):
        one_s = seconds(job, cluster, message)
        if message.when == "last":
            sums_s += one_s * message.count
            hidden_s += _hidden(job, cluster, message) * one_s * message.count
            last_s = max(last_s, one_s)
        elif message.when == "end":
            end_s += one_s * message.count
        elif message.when == "step":
            after_s += one_s * message.count
        elif message.when == "backward":
            earlier_s += one_s * message.count / job.microbatches
    if sums_s and earlier_s and _on_one_wire(job, cluster):
        backward_s -= earlier_s
    updates_s = job.program.hidden.updates * after_s if cluster.overlaps else 0.0
    shown_s = _shown_by_stage_s(job, sums_s, last_s, hidden_s, backward_s)
    return shown_s + end_s + _shown_by_stage_s(job, after_s, 0.0, updates_s, forward_s)


def _shown_by_stage_s(
    job: Job, all_s: float, first_s: float, hidden_s: float, room_s: float
) -> float:
    """The same of all messages of a step, where room is one micro-batch through the rank's stages.

    A program may send those of each stage by itself: gradients once the stage is over, parameters
    before it begins. While others pass a round of micro-batches its messages have all that room;
    those of the stage that is over last, or begins first, have one micro-batch of its own.

    Source: arXiv 2104.04473, figure 4; github.com/NVIDIA/Megatron-LM,
    core/pipeline_parallel/schedules.py, grad_sync_func and param_sync_func.
    """
    plan = job.plan
    if plan.schedule != "interleaved" or not job.program.sends_by_stage:
        return _shown_s(job, all_s, first_s, hidden_s, room_s)
    rounds, one = min(plan.pp, job.microbatches), plan.pp / plan.stages
    return max(
        _shown_s(job, all_s, first_s, hidden_s, room_s * (one + rounds * (1 - one))),
        _shown_s(job, one * all_s, first_s, one * hidden_s, one * room_s),
    )


def shared_s(job: Job, cluster: Cluster, rank: int) -> float:
    """Seconds of what no computing hides: sums of gradients that several tensor ranks have a part
    of, and the matrix that is embedding and head, which two pipeline ranks give each other in turn.
    """
    shared = (message for message in shared_messages(job, rank) if message.payload_bytes)
    tied = (message for message in pipeline_messages(job, rank) if message.when == "end")
    tied_s = sum(seconds(job, cluster, message) for message in tied)
    return sum(one.count * seconds(job, cluster, one) for one in shared) + 2 * tied_s
