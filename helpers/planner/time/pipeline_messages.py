"""Messages of the pipeline axis in a training step, and the time of one between two stages."""

from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.time.messages import Message, seconds


def pipeline_messages(job: Job, rank: int) -> list[Message]:
    """Of the pipeline axis: hidden states to the next stage and their gradients back, from each of
    the rank's stages that has a neighbour on another rank; the tied matrix once a step.

    Source: arXiv 2104.04473, section 3.2.
    """
    plan, owner = job.plan, job.rank_of
    if plan.pp == 1:
        return []
    hidden = job.hidden_bytes / job.sequence_ranks
    stages, last = job.stages_of(rank), len(owner) - 1
    onward = sum(stage < last and owner[stage + 1] != rank for stage in stages)
    back = sum(stage > 0 and owner[stage - 1] != rank for stage in stages)
    m = job.microbatches
    messages = [
        Message("pp", "send", hidden, onward * m, plan.pp, "hidden states", "forward"),
        Message("pp", "send", hidden, back * m, plan.pp, "their gradients", "backward"),
    ]
    ends = (owner[0], owner[-1])
    if job.shape.tied and ends[0] != ends[1] and rank in ends:
        table = job.vocab_rows * job.shape.hidden * job.held_sum_bytes / plan.shards
        messages.append(Message("pp", "send", table, 1, plan.pp, "tied matrix", "end"))
    return messages


def link_s(job: Job, cluster: Cluster) -> float:
    """Seconds of a message from a stage to the next: hidden states of one micro-batch.

    Under sequence parallelism each tensor rank sends its part. Megatron-LM also splits what all
    tensor ranks have alike, and gathers it on the other side.

    Source: arXiv 2104.04473, section 4.1.
    """
    plan = job.plan
    if plan.pp == 1:
        return 0.0
    hidden = job.hidden_bytes
    split = plan.tp if plan.sequence_parallel or job.program.split_sends else 1
    send = Message("pp", "send", hidden / split, 1, plan.pp, "hidden states", "forward")
    takes_s = seconds(job, cluster, send)
    if split > 1 and not plan.sequence_parallel:
        gather = Message("tp", "all_gather", hidden, 1, plan.tp, "hidden states", "forward")
        takes_s += seconds(job, cluster, gather)
    return takes_s
