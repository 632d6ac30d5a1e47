"""Bytes that a rank of another program holds at its fullest: what its `holds` says, and what its
blocks keep.

    program_memory(job, rank=0, holds=job.holds)

Nothing runs such a program here, so there is no walk along its order: the fullest is one of three
moments, the loss, a block's backward, and the end of the last backward. Measured peaks of three
programs are in docs/planner.md; none of these numbers is fitted to them.
"""

from helpers.planner.hardware.devices import CONTEXT_BYTES
from helpers.planner.memory.activations import activation_bytes, offloaded_bytes
from helpers.planner.memory.categories import Memory
from helpers.planner.memory.components import (
    gathered_bytes,
    root_bytes,
    stage_message_bytes,
    working_bytes,
)
from helpers.planner.memory.timeline import Held
from helpers.planner.model.holds import Holds
from helpers.planner.model.training_job import Job
from helpers.planner.model.units import units_of


def program_memory(
    job: Job, rank: int, holds: Holds, context_bytes: float = CONTEXT_BYTES
) -> Memory:
    """Of pipeline rank `rank`, its first tensor and data rank."""
    plan = job.plan
    parameters = job.parameters_of(rank) + _more_embedding(job, rank, holds)
    shards = plan.shards if plan.zero else 1
    divided = shards if plan.zero == 3 else 1
    fullest = max(_moments(job, rank, holds, parameters), key=sum)
    return Memory(
        parameters=holds.weights * parameters / divided,
        optimizer=holds.optimizer * parameters / shards,
        context=context_bytes,
        host=offloaded_bytes(job, rank),
        **fullest._asdict(),
    )


def _moments(job: Job, rank: int, holds: Holds, parameters: int) -> tuple[Held, Held, Held]:
    """The loss, a block's backward, and the end of the last one."""
    each = job.sum_bytes if holds.gradients_as_sent else holds.gradients
    gradients = waiting = each * parameters
    if job.plan.zero == 3:
        gradients /= job.plan.shards
        # torch's allocator keeps room for those of the step before, even when they are freed
        several = holds.accumulated and job.microbatches > 1
        waiting = holds.accumulated * parameters if several else gradients
    last = job.rank_of[-1] == rank
    activations, root = activation_bytes(job, rank), root_bytes(job, rank)
    messages = 2 * stage_message_bytes(job) if job.plan.pp > 1 else 0.0
    of_block = 2 * gathered_bytes(job, _largest_gathered(job, rank)) + working_bytes(job, rank)
    buckets = holds.buckets_bytes if job.plan.shards * job.plan.dp_replicate > 1 else 0.0
    always = root + messages + buckets
    return (
        Held(waiting, activations, _logits_bytes(job, holds) if last else 0.0, always),
        Held(waiting, activations, 0.0, always + of_block),
        Held(gradients, 0.0, 0.0, buckets),
    )


def _largest_gathered(job: Job, rank: int) -> float:
    """Parameters of a block that ZeRO-3 gathers, at most: all but experts that are dealt out."""
    if job.plan.ep == 1:
        return job.largest_block
    units = (units_of(job, stage).gathered for stage in job.stages_of(rank))
    return max((one for gathered in units for one in gathered), default=0.0)


def _logits_bytes(job: Job, holds: Holds) -> float:
    columns = job.shape.vocab if holds.whole_logits else job.vocab_rows
    return holds.logits * job.tokens * columns


def _more_embedding(job: Job, rank: int, holds: Holds) -> int:
    """Parameters of the embedding that the tensor rank has although tp could split them."""
    if not holds.whole_embedding or job.rank_of[0] != rank:
        return 0
    return (job.shape.vocab - job.vocab_rows) * job.shape.hidden
