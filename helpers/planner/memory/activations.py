"""Activations that a rank keeps for its backward passes: of a block, of all that are in flight, and
what of them is in host memory.
"""

import math
from operator import mul

from helpers.engine.memory.recomputing import group_size
from helpers.planner.memory.turns import Turn, turns
from helpers.planner.model.block_tensors import INPUT
from helpers.planner.model.training_job import Job
from helpers.planner.model.widths import Widths
from helpers.planner.shape.parameters import experts_share

# of a head, where a model makes cosines and sines once
ROTATED = {"llama": 1.0, "falcon": 1.0, "gpt_neox": 0.25}


def kept_bytes(job: Job, blocks: int) -> float:
    """What so many blocks of a stage keep of one micro-batch for their backward, under the plan's
    policy.

    Source: arXiv 2205.05198, equations 1 to 4, with each family's own tensors in place of the
    paper's (see model/block_tensors.py).
    """
    policy = job.plan.activation
    context = blocks * _context_bytes(job)
    if policy == "none" and job.plan.ep > 1:
        context += blocks * own_experts_bytes(job)
    if policy in job.program.kept:
        return blocks * (bytes_of(job, job.program.kept[policy]) + _sums_bytes(job)) + context
    return math.ceil(blocks / group_size(policy)) * bytes_of(job, INPUT) + context


def own_experts_bytes(job: Job) -> float:
    """Of a block's experts that ranks of ep deal out, what a rank has in the arithmetic's
    precision: copies of its float32 masters, which no message frees."""
    return job.element_bytes * job.own_experts if job.element_bytes < 4 else 0.0


def stage_bytes(job: Job, blocks: int) -> float:
    """What a stage of so many blocks keeps of one micro-batch on the device, with what its blocks
    share."""
    shared = _shared_bytes(job) if blocks else 0.0
    return kept_bytes(job, blocks) - sent_out_bytes(job, blocks) + shared


def _shared_bytes(job: Job) -> float:
    """What all blocks of a stage use: rotary tables, and where it was seen, masks too."""
    seen = job.program.shared
    if seen is not None:
        return bytes_of(job, seen)
    rotated = ROTATED.get(job.shape.family, 0.0) * job.shape.head_dim
    return 2 * rotated * job.whole_seq_len / job.plan.cp * job.element_bytes


def _sums_bytes(job: Job) -> float:
    """Attention in one kernel keeps the logarithm of a sum for each head and token, in float32."""
    one_kernel = job.program.attention == "one kernel"
    return 4 * job.tokens * job.shape.heads / job.plan.tp if one_kernel else 0.0


def _context_bytes(job: Job) -> float:
    """What attention over cp keeps beside it: with nothing recomputed its result once more, in the
    order of the products; where blocks are, its result and sums, so that nothing is sent twice.
    Ulysses has a result at its heads and one at its tokens.

    Source: the engine's context/kept.py.
    """
    plan = job.plan
    if plan.cp == 1:
        return 0.0
    if plan.activation == "none":
        return bytes_of(job, Widths(query=job.program.context_copies))
    results = int(plan.cp_attention == "ulysses")
    if plan.activation == "selective":
        return bytes_of(job, Widths(query=results))
    if not job.program.keeps_attention:
        return 0.0
    return bytes_of(job, Widths(query=1 + results)) + _sums_bytes(job)


def activation_bytes(job: Job, rank: int) -> float:
    """The most that a pipeline rank keeps for its backward passes."""
    return max(turn_activation_bytes(job, turn) for turn in turns(job, rank))


def turn_activation_bytes(job: Job, turn: Turn) -> float:
    """Kept for the backward passes of the micro-batches in flight when a backward begins; of what
    offloading sends out only what is on its way: three blocks' of one micro-batch.

    Source: arXiv 2205.05198, section 4.2.3, with the schedule's own number in flight.
    """
    stages = job.stages_of(job.rank_of[turn.stage])
    held = stays_bytes(job, sum(job.layers[stage] for stage in stages))
    for stage, whole, halved in zip(stages, turn.whole, turn.halved, strict=True):
        blocks = job.layers[stage]
        held += whole * stage_bytes(job.on((stage,)), blocks)
        held += halved * blocks * waiting_bytes(job) if halved else 0.0
    return held


def stays_bytes(job: Job, layers: int) -> float:
    """Of a rank with so many layers, however many micro-batches are in flight: what is kept of the
    last block alone, and what offloading has on its way."""
    stays = 0.0 if job.plan.activation == "none" else bytes_of(job, job.program.stays)
    return stays + sent_out_bytes(job, min(3, layers))


def sent_out_bytes(job: Job, blocks: int = 1) -> float:
    """Of what blocks keep, what offloading sends to host memory: with `selective` the blocks'
    inputs alone, for torch's checkpoint itself holds the results that are not computed again.

    Source: the engine's memory/recomputing.py and offloading.py.
    """
    if not job.plan.offload:
        return 0.0
    if job.plan.activation == "selective":
        return blocks * bytes_of(job, INPUT)
    return kept_bytes(job, blocks)


def offloaded_bytes(job: Job, rank: int) -> float:
    """Activations of a rank that are in host memory when most are. What is on its way is there,
    too."""
    if not job.plan.offload:
        return 0.0
    sent_out = [sent_out_bytes(job, job.layers[stage]) for stage in job.stages_of(rank)]
    return max(sum(map(mul, turn.whole, sent_out)) for turn in turns(job, rank))


def waiting_bytes(job: Job) -> float:
    """What one block's weights' gradients of one micro-batch are made from later: the inputs of its
    products, and the gradients of their results; but of experts', which come at once.

    Source: the engine's pipeline/split_backward.py.
    """
    shape, of_experts = job.shape, experts_share(job.shape)
    of_middle = 1 + shape.block[-2].outputs / shape.ffn  # a gate beside it makes it two
    of_middle *= 1 - of_experts
    whole = shape.norms + shape.reductions
    if of_experts:  # what they sum up to, and where no other expert is beside them what they take
        whole -= 1 if shape.reductions > 2 else 2
    width = bytes_of(job, Widths(inside=whole, query=2, kv=1, ffn=of_middle))
    return width / 2 if job.plan.precision == "fp8" else width


def bytes_of(job: Job, widths: Widths) -> float:
    """Bytes of such tensors of one block and one micro-batch on one rank."""
    plan = job.plan
    elements = widths.on(job.shape, plan.tp, plan.sequence_parallel, job.seq_len)
    return job.tokens * elements * job.element_bytes
