"""Bytes that a rank holds at the fullest moment of a training step.

    memory = rank_memory(job, rank=0)        # of a pipeline rank
    memory.activations, memory.allocated, memory.total
    fullest(job).total                        # of the rank that holds most

Activations are there when a backward begins and gradients when it ends, so what a step needs is not
the sum of its parts but the largest of a few moments. memory_parts.py has the parts.

Against the dry run of five families at their published widths, with four layers, the fullest moment
is within 3 %: tests/planner/test_dry_run.py.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from helpers.engine.memory.recomputing import group_size
from helpers.planner.memory.components import (
    activation_bytes,
    block_bytes,
    block_gradient_bytes,
    end_bytes,
    gathered_bytes,
    head_gradient_bytes,
    left_over_bytes,
    letters_bytes,
    loss_gradients_bytes,
    loss_work_bytes,
    reduced_bytes,
    root_bytes,
    sent_bytes,
    states_bytes,
    swapped_bytes,
    table_work_bytes,
    waiting_bytes,
    waiting_head_bytes,
    working_bytes,
)
from helpers.planner.memory.microbatches_in_flight import in_flight, in_halves, put_off
from helpers.planner.model.training_job import Job

CONTEXT_BYTES = 0.8 * 2**30  # a CUDA context, NCCL's buffers and cuBLAS's workspaces
# of what is allocated, for freed pieces too small to use: 5 to 10 % where it was measured
FRAGMENTS = 0.06
# gradients, activations, logits and transients
Moment = tuple[float, float, float, float]


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its fullest moment, by category.

    logits: the end of the model: the last norm, the head and the loss.
    transients: parameters that are gathered for a while, gradients on their way, messages between
        stages, and what one block's backward works with.
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
        return self.states + self.activations + self.logits + self.transients

    @property
    def total(self) -> float:
        """With the context and the allocator's fragments: what the device must have."""
        return self.allocated * (1 + FRAGMENTS) + CONTEXT_BYTES


def fullest(job: Job, limit_bytes: float = math.inf) -> Memory:
    """The memory of the pipeline rank that holds most: the first, which has most micro-batches in
    flight, the last, which has the logits, or one between. Or of the first moment that is found to
    be above `limit_bytes`."""
    most = rank_memory(job, 0, limit_bytes)
    for rank in sorted({min(1, job.plan.pp - 1), job.plan.pp - 1} - {0}):
        if most.total > limit_bytes:
            break
        other = rank_memory(job, rank, limit_bytes)
        most = max(most, other, key=lambda memory: memory.allocated)
    return most


def rank_memory(job: Job, rank: int, limit_bytes: float = math.inf) -> Memory:
    """Of pipeline rank `rank` at its fullest moment, or the first that is found to be above
    `limit_bytes`; its first tensor and data rank, which hold the most."""
    alive = _alive(job, rank)
    room = (limit_bytes - CONTEXT_BYTES) / (1 + FRAGMENTS) - alive.parameters - alive.optimizer
    fullest_bytes, found = -1.0, (0.0, 0.0, 0.0, 0.0)
    for moment in _moments(job, rank, alive):
        moment_bytes = sum(moment)
        if moment_bytes > fullest_bytes:
            fullest_bytes, found = moment_bytes, moment
            if moment_bytes > room:
                break
    gradients, *rest = found
    return Memory(alive.parameters, gradients, alive.optimizer, *rest)


class _Alive(NamedTuple):
    """What several moments have alike, in bytes.

    parameters, gradients, optimizer: the rank's states; before: gradients that are there already
        when most activations are.
    kept: activations when most micro-batches are in flight; unit: of the blocks whose backward is
        one; others: of all micro-batches but one.
    always: parameters that stay gathered, and messages between stages.
    left_over, at_first: what a backward leaves behind, and what is left when most activations are.
    other_ends: the end of the model of other micro-batches.
    """

    parameters: float
    gradients: float
    optimizer: float
    before: float
    kept: float
    unit: float
    others: float
    always: float
    left_over: float
    at_first: float
    other_ends: float


def _alive(job: Job, rank: int) -> _Alive:
    plan, kept, flying = job.plan, activation_bytes(job, rank), sum(in_flight(job, rank))
    parameters, gradients, optimizer = states_bytes(job, rank)
    left_over, has_head = left_over_bytes(job, rank), job.rank_of[-1] == rank
    # is the backward of some micro-batch over when most are in flight?
    earlier = flying < job.microbatches * len(job.stages_of(rank))
    return _Alive(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        before=gradients if earlier else 0.0,
        kept=kept,
        unit=group_size(plan.activation) * block_bytes(job),
        others=kept if plan.offload and flying > 1 else kept * (flying - 1) / flying,
        always=letters_bytes(job, rank) + root_bytes(job, rank),
        left_over=left_over,
        at_first=left_over if earlier else 0.0,
        other_ends=end_bytes(job) * (flying - 1) if has_head and plan.schedule == "gpipe" else 0.0,
    )


def _moments(job: Job, rank: int, alive: _Alive) -> Iterator[Moment]:
    """Each moment of a step that can be the fullest."""
    if job.rank_of[-1] == rank:
        yield from _at_the_loss(job, alive)
    yield from _in_blocks(job, rank, alive)
    if in_halves(job, rank):
        yield _at_the_latest(job, rank, alive)
    if gathered_bytes(job) and job.microbatches > 1:
        yield _at_the_next(job, rank, alive)
    yield from _at_the_end(job, rank, alive)


def _at_the_loss(job: Job, alive: _Alive) -> Iterator[Moment]:
    """All activations are there. And the loss of the second micro-batch, when the first's gradients
    are."""
    of_end = alive.other_ends + end_bytes(job) + loss_work_bytes(job)
    yield alive.before, alive.kept, of_end, alive.always + alive.at_first
    if alive.others:
        of_end = alive.other_ends + loss_gradients_bytes(job)
        yield alive.gradients, alive.others, of_end, alive.always + alive.left_over


def _in_blocks(job: Job, rank: int, alive: _Alive) -> Iterator[Moment]:
    """Begin and end of the backward of the last, the last but one, the second and the first block,
    while activations turn into gradients. And of the second micro-batch's last, when the first's
    gradients are there."""
    gathered, reduced = gathered_bytes(job), reduced_bytes(job)
    sent, working = sent_bytes(job, rank), working_bytes(job, rank)
    group, stages = group_size(job.plan.activation), len(job.stages_of(rank))
    last_of_many = job.plan.schedule == "interleaved" and rank == job.plan.pp - 1
    of_another = stages > 1 and not last_of_many
    units = -(-job.layers_of(rank) // stages // group)
    first_head, later_head = 0.0, 0.0
    if job.rank_of[-1] == rank:
        first_head, later_head = head_gradient_bytes(job), waiting_head_bytes(job)

    def of_block(
        summed: float, kept: float, of_head: float, whole: float, ahead: int
    ) -> Iterator[Moment]:
        # a block is gathered into a buffer, of which its parameters are then copied
        begin = max(2 * gathered, (1 + ahead) * gathered + working)
        yield summed, kept, of_head, alive.always + whole + begin
        if gathered and not in_halves(job, rank):
            # what was sent before is freed when the block's own gradients are sent
            end = max(whole + gathered + block_gradient_bytes(job), reduced)
            end += alive.always + ahead * gathered
            yield summed, max(0.0, kept - alive.unit), of_head, end

    # between first and last, activations go as evenly as gradients come
    places = {0, min(1, units - 1)} if sent else {0}
    if not (alive.before or in_halves(job, rank)):
        places |= {max(0, units - 2), units - 1} if sent else {units - 1}
    for done in places:
        summed = alive.before or _above(job, rank, done * group, later_head) * alive.gradients
        kept = min(alive.kept, alive.others + (units - done) * alive.unit)
        # fully_shard gathers the block before, at a stage's first one another stage's
        ahead = int(units - done > 1 or of_another)
        of_ends = alive.other_ends + (later_head if done else first_head)
        yield from of_block(summed, kept, of_ends, sent if done else alive.at_first, ahead)
    if alive.others and not alive.before:
        of_ends = later_head + max(0.0, alive.other_ends - end_bytes(job))
        whole, ahead = alive.left_over, int(units > 1)
        yield from of_block(alive.gradients, alive.others, of_ends, whole, ahead)


def _at_the_latest(job: Job, rank: int, alive: _Alive) -> Moment:
    """Most gradients of weights wait. What a block's backward works with and what it kept becomes,
    in part, what waits."""
    waiting = group_size(job.plan.activation) * waiting_bytes(job)
    gathered, working = gathered_bytes(job), working_bytes(job, rank)
    beside = gathered + max(gathered, working - waiting)
    late = activation_bytes(job, rank, put_off(job, rank))
    return alive.before, late, 0.0, alive.always + beside


def _at_the_next(job: Job, rank: int, alive: _Alive) -> Moment:
    """ZeRO-3 gathers the first block of the next micro-batch, while the buffer from which what is
    in no block was copied is still there."""
    whole = alive.always + root_bytes(job, rank) + 2 * gathered_bytes(job) + alive.left_over
    of_ends = max(0.0, alive.other_ends - end_bytes(job))
    return alive.gradients, alive.others, of_ends, whole


def _above(job: Job, rank: int, done: int, waiting_head: float) -> float:
    """The share of a rank's gradients that are there when the last `done` blocks' backward is over:
    theirs, and those of the norm and head above if these do not wait."""
    if not done:
        return 0.0
    head = 0 if waiting_head else job.end_parameters(rank) - job.begin_parameters(rank)
    return (done * job.block_parameters + head) / job.held(rank)


def _at_the_end(job: Job, rank: int, alive: _Alive) -> Iterator[Moment]:
    """All gradients are there, and the embedding's is made; a matrix that is embedding and head has
    one on two ranks, which they swap."""
    if job.rank_of[0] == rank:
        work = letters_bytes(job, rank) + table_work_bytes(job, rank)
        yield alive.gradients, alive.others, 0.0, work
    if rank in (job.rank_of[0], job.rank_of[-1]):
        yield alive.gradients, 0.0, 0.0, swapped_bytes(job)
