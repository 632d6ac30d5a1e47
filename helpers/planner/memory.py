"""Bytes that a rank holds while it trains: states, activations, logits, buffers.

    memory = rank_memory(job, rank=0)        # of a pipeline rank
    memory.activations, memory.total
    fullest(job).total                        # of the rank that holds most

Every function is one part; what the allocator adds is in `total`. Against the dry run of five
families at their published widths, states are within 0.1 % and activations with the end of the
model within 3 %, but for the last rank of zero-bubble schedules, of which up to 25 % too much is
said here: after a stage's gradient is sent only its layers' inputs wait. The parts are added up as
if all were fullest at once, which they are not, and gradients on their way to a ZeRO-1 or 2 sum are
taken for three buckets, where the engine holds all of a step's until its end. `allocated` so is
between 28 % less and 44 % more than the dry run's fullest moment for three layers.
"""

import math
from dataclasses import dataclass, fields

from helpers.engine.activations import group_size
from helpers.engine.loss import CHUNK_BYTES
from helpers.planner.blocks import INPUT, Widths
from helpers.planner.job import Job

BUCKET_BYTES = 25 * 2**20  # of the engine's gradient buckets
CONTEXT_BYTES = 0.8 * 2**30  # a CUDA context, NCCL's buffers and cuBLAS's workspaces
# of what is allocated, for freed pieces too small to use: 5 to 10 % where it was measured
FRAGMENTS = 0.06
GRADIENTS = Widths(inside=2, ffn=2)  # alive beside each other in a block's backward


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its fullest moment, by category.

    logits: the end of the model: the last norm, the head and the loss.
    transients: parameters that are gathered for a while, gradient buckets, messages between stages,
        and what one block's backward works with.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transients: float

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated counts."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def total(self) -> float:
        """With the context and the allocator's fragments: what the device must have."""
        return self.allocated * (1 + FRAGMENTS) + CONTEXT_BYTES


def rank_memory(job: Job, rank: int) -> Memory:
    """Bytes of pipeline rank `rank`; its first tensor and data rank, which hold the most."""
    parameters, gradients, optimizer = states_bytes(job, rank)
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=activation_bytes(job, rank),
        logits=logits_bytes(job, rank),
        transients=gathered_bytes(job, rank)
        + bucket_bytes(job)
        + letters_bytes(job, rank)
        + working_bytes(job),
    )


def fullest(job: Job, limit_bytes: float = math.inf) -> Memory:
    """The memory of the pipeline rank that holds most: the first, which has most micro-batches in
    flight, the last, which has the logits, or one between. Or of the first of these that is found
    to be above `limit_bytes`."""
    most = rank_memory(job, 0)
    for rank in sorted({min(1, job.plan.pp - 1), job.plan.pp - 1} - {0}):
        if most.total > limit_bytes:
            break
        most = max(most, rank_memory(job, rank), key=lambda memory: memory.total)
    return most


def states_bytes(job: Job, rank: int) -> tuple[float, float, float]:
    """Parameters, gradients and optimizer state of the engine, as data_parallel.py lays them out.

                          parameters       gradients     optimizer
        fp32              4                4             8
        bf16, fp16        2                g             12    g: 4, or 2 with that reduce_dtype
        the same, ZeRO-3  -                g             12    its float32 shards are the masters

    ZeRO-1 and 2 divide optimizer and summed gradients by dp_shard, ZeRO-3 all three. With ZeRO-1
    gradients of all but the last micro-batch wait whole for their sum.

    Source: arXiv 1910.02054 (ZeRO), section 3.1 and figure 1.
    """
    plan, held = job.plan, job.held(rank)
    low = plan.precision != "fp32"
    stage = plan.zero_stage if plan.dp_shard > 1 else 0
    shard = -(-held // plan.dp_shard)
    gradient = 2 if low and plan.reduce_dtype != "fp32" else 4
    of_parameters, of_optimizer = (2, 12) if low else (4, 8)
    waiting = stage in (1, 2) and job.microbatches > 1 and (stage == 1 or plan.halves)
    if stage == 3:
        return 4 * shard, 4 * shard, 8 * shard
    return (
        of_parameters * held,
        gradient * (held if stage == 0 or waiting else shard),
        of_optimizer * (shard if stage else held),
    )


def block_bytes(job: Job) -> float:
    """What one block keeps of one micro-batch for its backward, under the plan's policy.

    Source: arXiv 2205.05198, equations 1 to 4, with each family's own tensors in place of the
    paper's (see blocks.py).
    """
    policy = job.plan.activation
    if policy in job.program.kept:
        return _bytes(job, job.program.kept[policy]) + _sums_bytes(job)
    return _bytes(job, INPUT) / group_size(policy)


def _sums_bytes(job: Job) -> float:
    """Attention in one kernel keeps the logarithm of a sum for each head and token, in float32."""
    one_kernel = job.program.attention == "one kernel"
    return 4 * job.tokens * job.shape.heads / job.plan.tp if one_kernel else 0.0


def activation_bytes(job: Job, rank: int) -> float:
    """Kept for the backward passes of all micro-batches in flight; none of it with offloading but
    what is on its way: three blocks' of one micro-batch.

    Source: arXiv 2205.05198, section 4.2.3, with the schedule's own number in flight.
    """
    layers = job.layers_of(rank)
    if job.plan.offload:
        return min(3, layers) * block_bytes(job)
    chunks = len(job.stages_of(rank))
    return in_flight(job, rank) * layers / chunks * block_bytes(job)


def in_flight(job: Job, rank: int) -> int:
    """Most pairs of stage and micro-batch on a pipeline rank whose backward is still to come.

    Source: the table of schedules.py, which its simulator checks.
    """
    plan, m, p = job.plan, job.microbatches, job.plan.pp
    if p == 1:
        return 1
    if plan.schedule == "naive":
        return 1
    if plan.schedule == "gpipe":
        return m
    if plan.schedule == "1f1b":
        return min(m, p - rank)
    if plan.schedule == "zero-bubble":
        return min(m, p)
    if plan.schedule == "zero-bubble-v":
        return min(2 * m, 2 * p)
    v = plan.stages // p
    round_size = -(-m // max(1, m // p))
    return min(v * m, (v - 1) * round_size + 2 * (p - 1 - rank) + 1)


def logits_bytes(job: Job, rank: int) -> float:
    """The end of the model: what it keeps, and the most that the loss works with. Forward, a chunk
    of tokens at a time, that is a chunk's float32 exponentials, the hidden states of the labelled
    tokens and the product that is added to the head's gradient; backward the gradients, scaled in
    float32 and brought to the arithmetic's dtype.

    Source: loss.py; arXiv 2411.09009 (Cut Your Losses), section 4.
    """
    if job.rank_of[-1] != rank:
        return 0.0
    rows, element = -(-job.shape.vocab // job.plan.tp), job.element_bytes
    matrix, of_hidden = rows * job.shape.hidden, job.tokens * job.shape.hidden * element
    chunk = min(CHUNK_BYTES, 4 * job.tokens * rows)
    forward = element * matrix + of_hidden + chunk
    backward = (4 + (element if element < 4 else 0)) * matrix + of_hidden
    return end_bytes(job) + max(forward, backward)


def end_bytes(job: Job) -> float:
    """Kept at the end of the model for one micro-batch's backward: what the last norm keeps, and
    the gradients of hidden states and head, which the loss computes in its forward."""
    rows, split = -(-job.shape.vocab // job.plan.tp), _split(job)
    of_hidden = job.tokens * job.shape.hidden * job.element_bytes
    return (job.program.last_norm / split + 1) * of_hidden + 4 * rows * job.shape.hidden


def letters_bytes(job: Job, rank: int) -> float:
    """Hidden states and their gradients on their way between pipeline ranks: what was sent last,
    and receives that are posted ahead, two of them where gradients come back.

    Source: pipeline.py and links.py.
    """
    if job.plan.pp == 1:
        return 0.0
    letters = 1 if job.rank_of[-1] == rank else 3
    return letters * job.tokens * job.shape.hidden * job.element_bytes / _split(job)


def _split(job: Job) -> int:
    """Ranks over which hidden states between layers are split."""
    return job.plan.tp if job.plan.sequence_parallel else 1


def gathered_bytes(job: Job, rank: int) -> float:
    """Parameters and gradients that ZeRO-3 has whole for a while: two blocks' (one is used, one on
    its way) with one block's gradients in the arithmetic's and the sum's dtype; and embedding and
    head, which stay from forward to backward."""
    plan = job.plan
    if plan.zero_stage != 3 or plan.dp_shard == 1:
        return 0.0
    unit = job.block_parameters * group_size(plan.activation)
    element = job.element_bytes
    summed = 4 if plan.reduce_dtype == "fp32" else 2
    return unit * (2 * element + element + summed) + job.end_parameters(rank) * element


def bucket_bytes(job: Job) -> float:
    """Gradient buckets on their way, for DDP, ZeRO-1 and 2: one is filled, one sent, one back."""
    plan = job.plan
    by_fully_shard = plan.zero_stage == 3 and plan.dp_shard > 1
    return 3 * BUCKET_BYTES if plan.dp > 1 and not by_fully_shard else 0


def working_bytes(job: Job) -> float:
    """What one block's backward works with: what is recomputed before it, and gradients, of which
    the widest two stand beside each other."""
    again = 0.0
    if job.plan.activation != "none":
        whole = _bytes(job, job.program.kept["none"]) * group_size(job.plan.activation)
        again = max(0.0, whole - block_bytes(job))
    return again + _bytes(job, GRADIENTS)


def _bytes(job: Job, widths: Widths) -> float:
    """Bytes of such tensors of one block and one micro-batch on one rank."""
    plan = job.plan
    elements = widths.on(job.shape, plan.tp, plan.sequence_parallel, job.seq_len)
    return job.tokens * elements * job.element_bytes
