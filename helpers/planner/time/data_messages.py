"""Messages of the data axes in a training step: sums of gradients, gathers of parameters, and
tokens on their way to experts and back.

    DDP       all-reduce of the gradients, beside the last backward
    ZeRO-1    reduce-scatter of the gradients, likewise; all-gather of the new parameters
    ZeRO-2    the reduce-scatter in every micro-batch
    ZeRO-3    all-gather (blocks twice) and reduce-scatter, unit by unit, in every micro-batch
    HSDP      each of these over dp_shard, and all-reduce of a shard over dp_replicate, once
    cp        its ranks sum and share as those of dp_shard do
    ep        of ZeRO-3, for all but experts; of these an all-reduce over dp_replicate, once; and
              tokens, as EXPERTS_SEND says, as many for each expert as for any other

Sources: arXiv 1910.02054 (ZeRO), section 7; arXiv 2205.00119 (MiCS), section 3; Lepikhin et al.
2020, GShard, section 3, and the engine's experts/dispatch.py.
"""

import math

from helpers.engine.memory.recomputing import group_size
from helpers.engine.models.architecture import text_config
from helpers.planner.dry_run.experts_again import sums_again
from helpers.planner.memory.states import base_bytes, block_base_bytes
from helpers.planner.model.training_job import Job
from helpers.planner.model.units import units_of
from helpers.planner.shape.parameters import EXPERTS
from helpers.planner.shape.products import chosen_experts
from helpers.planner.time.messages import Message, Sent


def data_messages(job: Job, rank: int) -> list[Message]:
    """Those of pipeline rank `rank`, as the engine sums gradients and gathers parameters."""
    if job.plan.zero == 0:
        messages = _of_ddp(job, rank)
    elif job.plan.zero == 3:
        messages = _of_zero_3(job, rank)
    else:
        messages = _of_zero_1_and_2(job, rank)
    return [message for message in messages if message.ranks > 1]


def _of_ddp(job: Job, rank: int) -> list[Message]:
    gradients = job.trained_of(rank) * job.sum_bytes
    return [_in_buckets(job, "dp", "all_reduce", gradients, 1, job.plan.dp, "last")]


def _of_zero_1_and_2(job: Job, rank: int) -> list[Message]:
    plan, parameters = job.plan, job.trained_of(rank)
    axis, shards, copies = shard_axis(job), plan.shards, plan.dp_replicate
    gradients = parameters * job.sum_bytes
    each_time = plan.zero == 2 and not plan.splits_backward
    times, when = (job.microbatches, "backward") if each_time else (1, "last")
    new = parameters * job.element_bytes
    return [
        _in_buckets(job, axis, "reduce_scatter", gradients, times, shards, when),
        _in_buckets(job, "dp_replicate", "all_reduce", gradients / shards, times, copies, when),
        _in_buckets(job, axis, "all_gather", new, 1, shards, "step"),
    ]


def _of_zero_3(job: Job, rank: int) -> list[Message]:
    layers, count, m = job.layers_of(rank), job.parameters_of(rank), job.microbatches
    if job.plan.ep > 1:
        count -= (dealt := _dealt(job, rank))
    axis, shards, copies = shard_axis(job), job.plan.shards, job.plan.dp_replicate
    of_blocks = math.ceil(layers / group_size(job.plan.activation))
    units = of_blocks + 1  # of blocks, and embedding with head, which stay for a backward
    parameters, gradients = count * job.element_bytes, count * job.sum_bytes
    ends = job.end_parameters(rank) * job.element_bytes
    blocks = parameters - ends
    if job.adapters is not None:  # a base in 4 bits is gathered so
        trained = job.trained_of(rank)
        beside, gradients = trained * job.element_bytes, trained * job.sum_bytes
        parameters = base_bytes(job, rank) + beside
        blocks = layers * block_base_bytes(job) + beside
    # what is kept in float32 is summed over replicas once, what is not at every turn
    times, when = (1, "last") if job.sum_bytes == 4 else (m, "backward")
    share = gradients / shards
    messages = [
        _in_units(axis, "all_gather", parameters, units, m, shards, "forward"),
        _in_units(axis, "all_gather", blocks, of_blocks, m, shards, "backward"),
        _in_units(axis, "reduce_scatter", gradients, units, m, shards, "backward"),
        _in_units("dp_replicate", "all_reduce", share, units, times, copies, when),
    ]
    others = len(job.stages_of(rank)) - 1  # whose backwards free the ends, too
    if others and ends:
        messages.append(_in_units(axis, "all_gather", ends, 1, others * m, shards, "backward"))
    if job.plan.ep > 1:
        own = 4 * dealt / shards
        messages.append(_in_units("dp_replicate", "all_reduce", own, of_blocks, 1, copies, "end"))
    return messages


def _dealt(job: Job, rank: int) -> float:
    """Parameters of a rank's blocks that ZeRO-3 does not gather: of experts."""
    units = [units_of(job, stage) for stage in job.stages_of(rank)]
    return sum(sum(unit.parameters) - sum(unit.gathered) for unit in units)


def shard_axis(job: Job) -> str:
    """Of the ranks that share a copy's state."""
    return "dp_shard" if job.plan.cp == 1 else "dp_shard x cp"


def _in_buckets(
    job: Job, axis: str, kind: str, payload_bytes: float, times: int, ranks: int, when: str
) -> Message:
    """A payload in messages of about a bucket each, so many times."""
    bucket_bytes = max(job.program.bucket_bytes, job.program.bucket_rank_bytes * ranks)
    count = max(1, math.ceil(payload_bytes / bucket_bytes))
    return _in_units(axis, kind, payload_bytes, count, times, ranks, when)


def _in_units(
    axis: str, kind: str, payload_bytes: float, units: int, times: int, ranks: int, when: str
) -> Message:
    """A payload in a message for each of some equal units, so many times."""
    what = "parameters" if kind == "all_gather" else "gradients"
    return Message(axis, kind, payload_bytes / (units or 1), units * times, ranks, what, when)


# One layer of experts: `tokens` and `sums` are as wide as hidden states, `experts` and `weights` as
# many as a token chooses. Where blocks are recomputed, what the forward sent is sent again.
EXPERTS_SEND = (
    Sent("forward", "all_gather", "tokens"),
    Sent("forward", "all_gather", "experts"),
    Sent("forward", "all_gather", "weights"),
    Sent("forward", "reduce_scatter", "sums"),
    Sent("backward", "all_gather", "sums"),
    Sent("backward", "reduce_scatter", "weights"),
    Sent("backward", "reduce_scatter", "tokens"),
)
NUMBER_BYTES = 8  # of an expert's


def expert_messages(job: Job, rank: int) -> list[Message]:
    """By which ranks of ep send each other tokens: those of pipeline rank `rank`, of all its layers
    and micro-batches."""
    plan, m = job.plan, job.microbatches
    if plan.ep == 1:
        return []
    having = [_have_experts(job, stage) for stage in job.stages_of(rank)]
    layers = sum(map(sum, having))
    rows = [(row, m * layers) for row in EXPERTS_SEND]
    if plan.activation != "none":
        left_out = sum(_ends_without_sums(job, stage) for stage in having)
        again = [row._replace(when="again") for row in EXPERTS_SEND if row.when == "forward"]
        rows += [(row, m * (layers - left_out * (row.what == "sums"))) for row in again]
    chosen = chosen_experts(text_config(job.shape.source.config))
    hidden, pairs = job.hidden_bytes, job.tokens * chosen
    numbers = {"experts": NUMBER_BYTES * pairs, "weights": job.element_bytes * pairs}
    each = numbers | {"tokens": hidden, "sums": hidden}
    return [
        Message(shard_axis(job), kind, plan.ep * each[what], count, plan.ep, what, when)
        for (when, kind, what, _), count in rows
        if count
    ]


def _have_experts(job: Job, stage: int) -> list[bool]:
    """Of each of a stage's blocks."""
    return [
        any(one.role == EXPERTS for one in held)
        for held, several in job.blocks_of((stage,))
        for _ in range(several)
    ]


def _ends_without_sums(job: Job, having: list[bool]) -> int:
    """Units of a stage that are recomputed together and end with a layer of experts, of which
    recomputation stops before the sums; but where something is computed after them."""
    if not job.program.stops_early or sums_again(job.shape.source):
        return 0
    size = group_size(job.plan.activation)
    units = [having[begin : begin + size] for begin in range(0, len(having), size)]
    return sum(unit[-1] for unit in units)
