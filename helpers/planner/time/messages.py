"""Messages of a training step, by axis: how many, how large, and how long they take.

    for message in rank_messages(job, rank=0): print(message)
    sent_bytes(rank_messages(job, 0))            # {"tp": ..., "dp_shard": ..., "pp": ...}

A payload is the whole tensor that a group reduces or gathers, or that one rank sends another.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.engine.data_parallel.buckets import BUCKET_BYTES
from helpers.engine.models.chunked_loss import CHUNK_BYTES
from helpers.planner.hardware.cluster import Cluster, Link
from helpers.planner.model.training_job import Job

# kind: the share of the payload that a rank sends, with n ranks
SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
}


@dataclass(frozen=True)
class Message:
    """Equal messages of one rank in one step.

    axis: of the mesh; `dp` for dp_replicate and dp_shard together.
    when: beside each `forward` or `backward`, or the `last` backward alone; `again` where blocks
        are recomputed; `step` after the update.
    """

    axis: str
    kind: str
    payload_bytes: float
    count: float
    ranks: int
    what: str
    when: str

    @property
    def sent_bytes(self) -> float:
        """What the rank puts on the wire for all of them.

        Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms, theorem 1.
        """
        return self.count * self.payload_bytes * SENT[self.kind](self.ranks)


def rank_messages(job: Job, rank: int) -> list[Message]:
    """Every message of pipeline rank `rank` in one step; its first tensor and data rank."""
    return [
        message
        for message in (
            *tensor_messages(job, rank),
            *shared_messages(job, rank),
            *pipeline_messages(job, rank),
            *data_messages(job, rank),
        )
        if message.count and message.payload_bytes and message.ranks > 1
    ]


def sent_bytes(messages: Iterable[Message]) -> dict[str, float]:
    """Bytes that a rank sends in a step, by axis."""
    by_axis: dict[str, float] = defaultdict(float)
    for message in messages:
        by_axis[message.axis] += message.sent_bytes
    return dict(by_axis)


def tensor_messages(job: Job, rank: int) -> list[Message]:
    """Of the tensor axis: a message for each region that is left, forward, and entered, backward.

    Parallel attention and MLP share one region. Sequence parallelism gathers where plain tensor
    parallelism copies, and scatters where it reduces: the same bytes in two halves. Recomputed
    blocks send again what is sent before their last product.

    Source: arXiv 1909.08053 (Megatron-LM), section 3; arXiv 2205.05198, section 4.2.2.
    """
    plan, shape, n = job.plan, job.shape, job.plan.tp
    if n == 1:
        return []
    hidden = job.tokens * shape.hidden * job.element_bytes
    blocks = job.layers_of(rank) * job.microbatches
    regions, m = shape.reductions, job.microbatches
    entries = max(regions, shape.norms)  # two norms of one input are gathered one by one
    again = blocks if plan.activation != "none" else 0
    if plan.activation == "selective" and job.program.attention == "scores":
        again = 0  # only the attention between the messages is computed again
    left_again = regions - 1 if job.program.stops_early else regions
    found = []

    def add(kind: str, count: float, what: str, when: str, payload: float = hidden) -> None:
        if count:
            found.append(Message("tp", kind, payload, count, n, what, when))

    if plan.sequence_parallel:
        add("all_gather", blocks * entries, "blocks", "forward")
        add("reduce_scatter", blocks * regions, "blocks", "forward")
        add("all_gather", blocks * regions, "blocks", "backward")
        add("reduce_scatter", blocks * entries, "blocks", "backward")
        add("all_gather", again * entries, "blocks again", "again")
        add("reduce_scatter", again * left_again, "blocks again", "again")
    else:
        add("all_reduce", blocks * regions, "blocks", "forward")
        add("all_reduce", blocks * regions, "blocks", "backward")
        add("all_reduce", again * left_again, "blocks again", "again")
    if job.rank_of[0] == rank:
        add("all_reduce", m, "embedding", "forward")
        if plan.sequence_parallel:
            add("all_gather", m, "embedding", "backward")
    if job.rank_of[-1] == rank:
        if plan.sequence_parallel:
            add("all_gather", m, "head", "forward")
            add("reduce_scatter", m, "head", "backward")
        else:
            add("all_reduce", m, "head", "backward")
        chunk = max(1, CHUNK_BYTES * n // (shape.vocab * 4))
        chunks = math.ceil(job.tokens / chunk)
        each = 4 * job.tokens / chunks
        add("all_reduce", m * chunks, "loss: maximum", "forward", each)
        add("all_reduce", m * chunks, "loss: sum and target", "forward", 2 * each)
    return found


def shared_messages(job: Job, rank: int) -> list[Message]:
    """Of the tensor axis: the gradients of `shared_parameters`, once a step."""
    payload = shared_parameters(job, rank) * _summed_bytes(job) / job.plan.dp_shard
    return [Message("tp", "all_reduce", payload, 1, job.plan.tp, "shared parameters", "last")]


def shared_parameters(job: Job, rank: int) -> int:
    """Parameters that every tensor rank holds whole, of whose gradient each has a part: norms of a
    split sequence, or of an input that several norms read; key-value heads fewer than ranks.

    Source: arXiv 2205.05198, section 4.2.2, for the norms.
    """
    plan, shape = job.plan, job.shape
    several = shape.reductions == 1 and shape.norms > 1
    block = shape.block_norm if plan.sequence_parallel or several else 0
    if shape.kv_heads % plan.tp:
        block += sum(linear.parameters for linear in shape.block if linear.cut == "kv")
    last = plan.sequence_parallel and job.rank_of[-1] == rank
    return job.layers_of(rank) * block + (shape.final_norm if last else 0)


def _summed_bytes(job: Job) -> int:
    """Bytes of a number in a sum of gradients."""
    low = job.plan.precision != "fp32" and job.plan.reduce_dtype != "fp32"
    return 2 if low else 4


def pipeline_messages(job: Job, rank: int) -> list[Message]:
    """Of the pipeline axis: hidden states to the next stage and their gradients back, from each of
    the rank's stages that has a neighbour on another rank; the tied matrix once a step.

    Source: arXiv 2104.04473, section 3.2.
    """
    plan, owner = job.plan, job.rank_of
    if plan.pp == 1:
        return []
    split = plan.tp if plan.sequence_parallel else 1
    hidden = job.tokens * job.shape.hidden * job.element_bytes / split
    stages, last = job.stages_of(rank), len(owner) - 1
    onward = sum(stage < last and owner[stage + 1] != rank for stage in stages)
    back = sum(stage > 0 and owner[stage - 1] != rank for stage in stages)
    m = job.microbatches
    found = [
        Message("pp", "send", hidden, onward * m, plan.pp, "hidden states", "forward"),
        Message("pp", "send", hidden, back * m, plan.pp, "their gradients", "backward"),
    ]
    ends = (owner[0], owner[-1])
    if job.shape.tied and ends[0] != ends[1] and rank in ends:
        table = job.vocab_rows * job.shape.hidden * 4
        found.append(Message("pp", "send", table, 1, plan.pp, "tied matrix", "step"))
    return found


def data_messages(job: Job, rank: int) -> list[Message]:
    """Of the data axes, as data_parallel.py sums gradients and gathers parameters.

        DDP       all-reduce of the gradients, beside the last backward
        ZeRO-1    reduce-scatter of the gradients, likewise; all-gather of the new parameters
        ZeRO-2    the reduce-scatter in every micro-batch
        ZeRO-3    all-gather (blocks twice) and reduce-scatter, unit by unit, in every micro-batch
        HSDP      each of these over dp_shard, and all-reduce of a shard over dp_replicate, once

    Source: arXiv 1910.02054 (ZeRO), section 7; arXiv 2205.00119 (MiCS), section 3.
    """
    plan, held = job.plan, job.held(rank)
    gradients, parameters = held * _summed_bytes(job), held * job.element_bytes
    s, r, m = plan.dp_shard, plan.dp_replicate, job.microbatches
    if s == 1:
        found = [_buckets("dp", "all_reduce", gradients, 1, plan.dp, "last")]
    elif plan.zero_stage == 3:
        layers = job.layers_of(rank)
        units = layers + 1  # each block, and embedding with head, which stay for the backward
        # what is kept in float32 is summed over replicas once, what is not at every turn
        times, when = (1, "last") if _summed_bytes(job) == 4 else (m, "backward")
        blocks = layers * job.block_parameters * job.element_bytes
        found = [
            _units("all_gather", "dp_shard", parameters, units, m, s, "parameters", "forward"),
            _units("all_gather", "dp_shard", blocks, layers, m, s, "parameters", "backward"),
            _units("reduce_scatter", "dp_shard", gradients, units, m, s, "gradients", "backward"),
            _units("all_reduce", "dp_replicate", gradients / s, units, times, r, "gradients", when),
        ]
    else:
        each_time = plan.zero_stage == 2 and not plan.splits_backward
        times, when = (m, "backward") if each_time else (1, "last")
        found = [
            _buckets("dp_shard", "reduce_scatter", gradients, times, s, when),
            _buckets("dp_replicate", "all_reduce", gradients / s, times, r, when),
            _buckets("dp_shard", "all_gather", parameters, 1, s, "step"),
        ]
    return [message for message in found if message.ranks > 1]


def _buckets(
    axis: str, kind: str, payload_bytes: float, times: int, ranks: int, when: str
) -> Message:
    """Gradients, or the parameters that follow from them, in messages of about a bucket each."""
    count = max(1, math.ceil(payload_bytes / BUCKET_BYTES))
    what = "parameters" if kind == "all_gather" else "gradients"
    return Message(axis, kind, payload_bytes / count, count * times, ranks, what, when)


def _units(
    kind: str,
    axis: str,
    payload_bytes: float,
    units: int,
    times: int,
    ranks: int,
    what: str,
    when: str,
) -> Message:
    """A message for each unit that fully_shard wraps, in every micro-batch."""
    return Message(axis, kind, payload_bytes / max(1, units), units * times, ranks, what, when)


def message_s(message: Message, link: Link) -> float:
    """Seconds of one of these messages: the start, and the bytes at the link's pace.

    A send is one start; a reduction or a gather among n starts log2(n) times, as a tree does, and
    twice that where it goes both ways.
    """
    steps = 1 if message.kind == "send" else math.ceil(math.log2(message.ranks))
    starts = steps * (2 if message.kind == "all_reduce" else 1)
    payload = message.payload_bytes * SENT[message.kind](message.ranks)
    return starts * link.latency_s + payload / link.bytes_per_s


def link_of(job: Job, cluster: Cluster, axis: str, kind: str = "all_reduce") -> Link:
    """The link of the groups of an axis for a kind of message; of `dp`, over both data axes."""
    plan = job.plan
    if axis == "pp":
        return cluster.group_link(2, job.stride("pp"), kind)
    if axis == "dp":
        return cluster.group_link(plan.dp, job.stride("dp_shard"), kind)
    return cluster.group_link(plan.degrees[axis], job.stride(axis), kind)


def seconds(job: Job, cluster: Cluster, message: Message) -> float:
    """Seconds of one of these messages in this layout on this cluster."""
    return message_s(message, link_of(job, cluster, message.axis, message.kind))
