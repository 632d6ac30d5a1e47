"""Messages of the context axis in a training step, as a table, and how much of them shows.

    ring      keys with values to the next rank, n - 1 times; backward once more, and behind them
              their gradients, n times
    gather    keys with values; backward once more, and their gradients are scattered
    ulysses   queries, keys, values and the result; backward those again with the result's gradient,
              and the gradients of the first three

Gradients are sent in float32, as they are summed. Where the engine recomputes a block it sends
nothing twice. A ring's messages travel while the rank attends to what it has.

Sources: Liu et al. 2023, Ring Attention, section 3; Dubey et al. 2024, The Llama 3 Herd of Models,
section 3.3.2; Jacobs et al. 2023, DeepSpeed Ulysses, section 3. The engine's context/.
"""

from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.block_tensors import KEEPS
from helpers.planner.model.training_job import Job
from helpers.planner.time.messages import Message, Sent, seconds


def sent(way: str, ranks: int) -> tuple[Sent, ...]:
    """What attention of one block sends in each direction: as wide as `queries` or as `keys`, or
    `gradients of` them."""
    if way == "ring":
        return (
            Sent("forward", "send", "keys", ranks - 1),
            Sent("backward", "send", "keys", ranks - 1),
            Sent("backward", "send", "gradients of keys", ranks),
        )
    if way == "gather":
        return (
            Sent("forward", "all_gather", "keys"),
            Sent("backward", "all_gather", "keys"),
            Sent("backward", "reduce_scatter", "gradients of keys"),
        )
    return (
        Sent("forward", "all_to_all", "queries", 2),
        Sent("forward", "all_to_all", "keys", 2),
        Sent("backward", "all_to_all", "queries", 2),
        Sent("backward", "all_to_all", "keys", 2),
        Sent("backward", "all_to_all", "gradients of queries"),
        Sent("backward", "all_to_all", "gradients of keys", 2),
    )


def context_messages(job: Job, rank: int) -> list[Message]:
    """Those of pipeline rank `rank`, of all its blocks and micro-batches."""
    ranks, times = job.plan.cp, job.layers_of(rank) * job.microbatches
    if ranks == 1:
        return []
    rows = sent(job.plan.cp_attention, ranks)
    if attends_again(job):
        rows += tuple(row._replace(when="again") for row in rows if row.when == "forward")
    return [
        Message("cp", row.kind, _payload(job, row), row.each * times, ranks, row.what, row.when)
        for row in rows
    ]


def attends_again(job: Job) -> bool:
    """Is attention over cp done again where blocks are recomputed?"""
    return job.plan.activation not in KEEPS and not job.program.keeps_attention


def _payload(job: Job, row: Sent) -> float:
    """Bytes of one message: of a ring keys and values together, of a gather those of all ranks."""
    shape, plan = job.shape, job.plan
    heads = shape.heads // plan.tp
    if row.what.endswith("keys"):
        heads = max(1, shape.kv_heads // plan.tp)
        if plan.cp_attention == "ulysses":
            heads = heads if heads % plan.cp == 0 else plan.cp  # one for every rank
        else:
            heads *= 2 * (plan.cp if plan.cp_attention == "gather" else 1)
    element = 4 if row.what.startswith("gradients") else job.element_bytes
    return job.tokens * heads * shape.head_dim * element


def shown_context_s(
    job: Job, cluster: Cluster, forward_s: float, backward_s: float
) -> tuple[float, float]:
    """Seconds that they add to one block and one micro-batch: forward, and backward with what is
    sent again before it.

    A ring has as many rounds as ranks. In each it computes a share of its attention, while the next
    keys are on their way, and in the backward the last round's gradients; those of the last of all
    nothing hides.

    Args:
        forward_s, backward_s: of the block's attention on this rank.

    Source: Liu et al. 2023, section 3.
    """
    ranks = job.plan.cp
    if ranks == 1:
        return 0.0, 0.0
    rank = max(range(job.plan.pp), key=job.layers_of)
    times, messages = job.layers_of(rank) * job.microbatches, context_messages(job, rank)
    if job.plan.cp_attention != "ring" or not cluster.overlaps:
        each_s = [(one.when, one.count / times * seconds(job, cluster, one)) for one in messages]
        forward_s = sum(one_s for when, one_s in each_s if when == "forward")
        return forward_s, sum(one_s for when, one_s in each_s if when != "forward")
    keys_s, gradients_s = (
        next(seconds(job, cluster, one) for one in messages if one.what == what)
        for what in ("keys", "gradients of keys")
    )
    rounds_s = [keys_s, *[keys_s + gradients_s] * (ranks - 2), gradients_s]
    forward_s = (ranks - 1) * max(0.0, keys_s - forward_s / ranks)
    backward_s = gradients_s + sum(max(0.0, one_s - backward_s / ranks) for one_s in rounds_s)
    return forward_s, backward_s + (forward_s if attends_again(job) else 0.0)
