"""Messages of the tensor axis in a training step, as a table.

A message for each region that is left, forward, and entered, backward. Parallel attention and MLP
share one region. Sequence parallelism gathers where plain tensor parallelism copies, and scatters
where it reduces: the same bytes in two halves.

Source: arXiv 1909.08053 (Megatron-LM), section 3; arXiv 2205.05198, section 4.2.2.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.engine.models.chunked_loss import chunk_bytes
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.partial_gradients import MESSAGE_BYTES
from helpers.planner.model.adapters import matrices
from helpers.planner.model.shared_gradients import shared_gradient_bytes
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.shape.shape import Shape
from helpers.planner.time.messages import Message


class Sent(NamedTuple):
    """Messages of hidden states.

    what: the part of the model. when: as Message says.
    each: how many of them a block or an end of the model sends: as many as it has `regions`, as it
        has `inputs` of regions (two norms of one input are gathered one by one), or `one`.
        `regions again`: those that recomputation gets to.
    """

    what: str
    when: str
    kind: str
    each: str


PLAIN = (
    Sent("blocks", "forward", "all_reduce", "regions"),
    Sent("blocks", "backward", "all_reduce", "regions"),
    Sent("embedding", "forward", "all_reduce", "one"),
    Sent("head", "backward", "all_reduce", "one"),
)
SEQUENCE_PARALLEL = (
    Sent("blocks", "forward", "all_gather", "inputs"),
    Sent("blocks", "forward", "reduce_scatter", "regions"),
    Sent("blocks", "backward", "all_gather", "regions"),
    Sent("blocks", "backward", "reduce_scatter", "inputs"),
    Sent("embedding", "forward", "all_reduce", "one"),
    Sent("embedding", "backward", "all_gather", "one"),
    Sent("head", "forward", "all_gather", "one"),
    Sent("head", "backward", "reduce_scatter", "one"),
)
PLAIN_AGAIN = (Sent("blocks again", "again", "all_reduce", "regions again"),)
SEQUENCE_PARALLEL_AGAIN = (
    Sent("blocks again", "again", "all_gather", "inputs"),
    Sent("blocks again", "again", "reduce_scatter", "regions again"),
)
# by sequence_parallel: what is sent, and what is sent once more where blocks are recomputed
TABLES = {False: (PLAIN, PLAIN_AGAIN), True: (SEQUENCE_PARALLEL, SEQUENCE_PARALLEL_AGAIN)}


def tensor_messages(job: Job, rank: int) -> list[Message]:
    """Those of pipeline rank `rank`: of its blocks, of its ends of the model, and of the blocks it
    computes again."""
    tp, m, hidden = job.plan.tp, job.microbatches, job.hidden_bytes
    if tp == 1:
        return []
    first, last = job.rank_of[0] == rank, job.rank_of[-1] == rank
    parts = {"blocks": job.layers_of(rank), "embedding": int(first), "head": int(last)}
    parts["blocks again"] = parts["blocks"]
    regions = job.shape.reductions
    each = {"regions": regions, "inputs": max(regions, job.shape.norms), "one": 1}
    again = _regions_again(job, rank)
    counts = [
        (row, m * (again if row.each == "regions again" else parts[row.what] * each[row.each]))
        for row in _table(job)
    ]
    messages = [
        Message("tp", row.kind, hidden, count, tp, row.what, row.when)
        for row, count in counts
        if count
    ]
    messages += _of_scales(job, rank)
    return messages + _of_loss(job) if last else messages


def _of_scales(job: Job, rank: int) -> list[Message]:
    """With products in 8 bits, whose scales ranks agree on: for each token that goes into a layer
    that is split by inputs, and whose gradient comes into one that is split by outputs; and for
    each matrix. Where blocks are recomputed, however much of them, ranks agree again on those of
    the forward. Programs that take one scale for a whole tensor, most of them that of earlier
    steps, send next to nothing.

    Source: the engine's precision/float8.py.
    """
    if not job.program.sends_scales:
        return []
    tp, numbers = job.plan.tp, 4 * job.tokens
    blocks, each = job.layers_of(rank) * job.microbatches, len(matrices(job.shape))
    rows = sum(linear.cut == "row" for linear in job.shape.block)
    sent = [("backward", numbers, each - rows)]
    for when in ("forward",) if job.plan.activation == "none" else ("forward", "again"):
        sent += [(when, numbers, rows), (when, 4, each)]
    return [
        Message("tp", "all_reduce", payload, count * blocks, tp, "blocks: scales", when)
        for when, payload, count in sent
    ]


def _table(job: Job) -> tuple[Sent, ...]:
    """What the plan sends. Recomputed blocks send again what their forward sent, but for what
    leaves the last region where recomputation stops before that."""
    plan = job.plan
    table, again = TABLES[plan.sequence_parallel]
    # of scores in memory, only the attention between the messages is computed again
    between = plan.activation == "selective" and job.program.attention == "scores"
    return table if plan.activation == "none" or between else table + again


def _regions_again(job: Job, rank: int) -> int:
    """Regions that recomputation gets to, of one micro-batch: of blocks that are recomputed
    together all but the last, where it stops before that."""
    size = group_size(job.plan.activation)
    units = sum(math.ceil(job.layers[stage] / size) for stage in job.stages_of(rank))
    left_out = units if job.program.stops_early else 0
    return job.shape.reductions * job.layers_of(rank) - left_out


def _of_loss(job: Job) -> list[Message]:
    """Of each chunk of tokens: a float32 maximum for each, then a sum and the target's logit. Under
    gpipe, where the head's gradient is made in the backward, once more there."""
    tp = job.plan.tp
    chunk = max(1, chunk_bytes(job.device) * tp // (job.shape.vocab * 4))
    chunks = math.ceil(job.tokens / chunk)
    number_bytes, count = 4 * job.tokens / chunks, job.microbatches * chunks
    numbers = (("loss: maximum", number_bytes), ("loss: sum and target", 2 * number_bytes))
    return [
        Message("tp", "all_reduce", payload, count, tp, what, when)
        for when in (("forward", "backward") if job.made_late else ("forward",))
        for what, payload in numbers
    ]


@dataclass(frozen=True)
class TensorTraffic:
    """Payload bytes that a tensor-parallel group all-reduces in one training step, by part of the
    model."""

    blocks: int
    embedding: int
    head: int
    loss: int

    @property
    def total(self) -> int:
        return self.blocks + self.embedding + self.head + self.loss


def tensor_traffic(
    shape: Shape, batch: int, seq_len: int, tp: int, precision: str = "fp32"
) -> TensorTraffic:
    """Bytes all-reduced in one step over batch x seq_len tokens under plain tensor parallelism:
    2·reductions·layers messages of tokens x hidden elements, one each for embedding and head, and
    for the loss three fp32 numbers per token that has a label.

    Raises:
        UserError: tp does not divide the model's heads or MLP, or a number is not above 0.
    """
    job = make_job(shape, ParallelPlan(tp=tp, precision=precision), batch, seq_len)
    by_part = dict.fromkeys(("blocks", "embedding", "head", "loss"), 0.0)
    for message in tensor_messages(job, 0):
        by_part[message.what.split(":")[0]] += message.count * message.payload_bytes
    return TensorTraffic(**{part: round(size) for part, size in by_part.items()})


def shared_messages(job: Job, rank: int) -> list[Message]:
    """Of the tensor axis: the gradients of shared_parameters, once a step."""
    whole = shared_gradient_bytes(job, rank)
    count = max(1, math.ceil(whole / MESSAGE_BYTES))
    payload, tp = whole / count, job.plan.tp
    return [Message("tp", "all_reduce", payload, count, tp, "shared parameters", "end")]
