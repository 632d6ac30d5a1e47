"""Seconds of the data axes' messages that computing does not hide.

ZeRO-3, ZeRO-2    in every micro-batch, beside its forward and backward
DDP, ZeRO-1       once, beside the last backward; new parameters after the update
"""

from helpers.planner.hardware.cluster import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.data_messages import data_messages
from helpers.planner.time.messages import seconds


def shown_data_s(
    job: Job, cluster: Cluster, rank: int, forward_s: float, backward_s: float
) -> tuple[float, float]:
    """What they add to the forward and to the backward of one of the rank's stages, of one
    micro-batch.

    A unit's parameters are gathered, and its gradients reduced, while another computes; only the
    first unit in is waited for, and what takes longer than the computing.

    Args:
        forward_s, backward_s: of the stage's computing.

    Source: arXiv 2304.11277 (PyTorch FSDP), section 3.3.
    """
    stages = len(job.stages_of(rank)) * job.microbatches
    messages, shown = data_messages(job, rank), []
    for when, computing_s in (("forward", forward_s), ("backward", backward_s)):
        all_s = first_s = 0.0
        for message in messages:
            if message.when == when:
                message_s = seconds(job, cluster, message)
                all_s += message_s * message.count / stages
                first_s = max(first_s, message_s)
        beside_s = max(0.0, all_s - first_s - computing_s) if cluster.overlaps else all_s
        shown.append(min(all_s, first_s + beside_s))
    return tuple(shown)


def least_data_s(job: Job, cluster: Cluster) -> float:
    """Seconds of the messages beside every micro-batch, on the first pipeline rank: however much
    computing hides them, no step is shorter."""
    return sum(
        message.count * seconds(job, cluster, message)
        for message in data_messages(job, 0)
        if message.when in ("forward", "backward")
    )


def late_data_s(job: Job, cluster: Cluster, rank: int, backward_s: float) -> float:
    """Seconds after the last backward: sums of gradients that did not fit beside it, of which the
    last bucket starts only at its end, and new parameters on their way to all ranks.

    Args:
        backward_s: of the last micro-batch, over the rank's stages.

    Source: Li et al. 2020, PyTorch Distributed, section 3.2.
    """
    sums_s = last_s = after_s = 0.0
    for message in data_messages(job, rank):
        message_s = seconds(job, cluster, message)
        if message.when == "last":
            sums_s += message_s * message.count
            last_s = max(last_s, message_s)
        elif message.when == "step":
            after_s += message_s * message.count
    if not cluster.overlaps:
        return sums_s + after_s
    return min(sums_s, max(last_s, sums_s - backward_s)) + after_s
