"""Gradients on their way into their sums by DDP, ZeRO-1 and 2: in messages, each of several
parameters, which are copied together, or of one that is large.

Source: the engine's data_parallel/buckets.py.
"""

import bisect
import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from helpers.engine.data_parallel.buckets import BUCKET_BYTES, ReduceScattered
from helpers.planner.memory.turns import in_halves
from helpers.planner.model.training_job import Job
from helpers.planner.shape.parameters import Held, begin_parameters, end_parameters

END = attrgetter("end")
NORMS_FIRST = ("gpt2", "gptj", "gpt_neox")  # in the order of a block's parameters


class Message(NamedTuple):
    """Gradients of several parameters, copied into one tensor, or the gradient of one.

    end: elements of this and of all that are full before it.
    """

    elements: int
    parameters: int
    end: int

    @property
    def copied(self) -> int:
        """Elements of the copy."""
        return self.elements if self.parameters > 1 else 0


def messages(job: Job, rank: int) -> Iterator[Message]:
    """All of a pipeline rank, stage after stage from its last to its first."""
    stages = reversed(job.stages_of(rank))
    return itertools.chain.from_iterable(stage_messages(job, stage) for stage in stages)


def stage_messages(job: Job, stage: int) -> tuple[Message, ...]:
    """Those of a stage, in the order in which they are full."""
    first, last = stage == 0, stage == len(job.layers) - 1
    begin = begin_parameters(job.shape) if first else ()
    end = end_parameters(job.shape) if last else ()
    if job.shape.tied and job.rank_of[-1] == job.rank_of[stage]:
        # one matrix for both ends, which comes first in the model
        table = begin_parameters(job.shape)[0]
        if last and job.rank_of[0] != job.rank_of[stage]:
            begin = (table,)
        end = tuple(held for held in end if held.sizes != table.sizes)
    blocks = job.blocks_of((stage,))
    if job.shape.family in NORMS_FIRST:
        norms = job.shape.block_norm // job.shape.hidden
        blocks = tuple(((*held[-norms:], *held[:-norms]), several) for held, several in blocks)
    most = BUCKET_BYTES // job.sum_bytes
    return _filled(begin, blocks, end, job.plan.tp, most)


@lru_cache(maxsize=4096)
def _filled(
    begin: tuple[Held, ...],
    blocks: tuple[tuple[tuple[Held, ...], int], ...],
    end: tuple[Held, ...],
    tp: int,
    most: int,
) -> tuple[Message, ...]:
    """From the last parameter to the first, of so many elements at most.

    Args:
        blocks: as Job.blocks_of has them.
    """
    sizes: list[int] = []
    for several, times in ((begin, 1), *blocks, (end, 1)):
        sizes += times * [math.prod(held.on(tp)) for held in several]
    found, filled_to, elements, parameters = [], 0, 0, 0
    for size in reversed(sizes):
        if elements and elements + size > most:
            found.append(Message(elements, parameters, filled_to))
            elements = parameters = 0
        elements, parameters, filled_to = elements + size, parameters + 1, filled_to + size
    return (*found, Message(elements, parameters, filled_to))


def full_messages(job: Job, stage: int, elements: float) -> tuple[Message, ...]:
    """Those of a stage that are full when so many of its gradients are there."""
    found = stage_messages(job, stage)
    return found[: bisect.bisect_right(found, elements, key=END)]


def one_message(job: Job, rank: int) -> bool:
    """Do all gradients of a rank go in one message, when its backward is over?"""
    if len(job.stages_of(rank)) > 1 or not in_messages(job):
        return False
    return job.sum_bytes * job.parameters_of(rank) <= BUCKET_BYTES


def in_messages(job: Job) -> bool:
    """Are gradients copied into messages, be it only to have them in the dtype of sums?"""
    low = job.plan.precision != "fp32"
    return job.plan.zero != 3 and (low or job.plan.dp * job.plan.cp > 1)


def sends_now(job: Job, rank: int) -> bool:
    """Are messages sent in the backwards at which most is held?"""
    if not in_messages(job) or in_halves(job, rank):
        return False
    return job.microbatches == 1 or (job.plan.zero == 2 and not job.plan.splits_backward)


class Made(NamedTuple):
    """Bytes of what a backward has made of a rank's gradients: summed; and on their way there."""

    summed: float
    on_the_way: float


def made_bytes(job: Job, stage: int, elements: float, gradients: float) -> Made:
    """When so many gradients of a stage were made.

    Those of a message wait in the arithmetic's dtype until it is full. ZeRO-1 and 2 have two
    messages and what comes back of them before the sums are there.

    Args:
        gradients: bytes of all of the rank's, when they are there.
    """
    rank = job.rank_of[stage]
    if not sends_now(job, rank):
        return Made(gradients * elements / job.parameters_of(rank), 0.0)
    full = full_messages(job, stage, elements)
    under_way = full[-ReduceScattered.most_under_way :] if job.plan.zero else ()
    shards = job.plan.shards if job.plan.zero else 1
    ended = full[-1].end if full else 0
    sent, coming = ended * job.sum_bytes, sum(one.elements for one in under_way) * job.sum_bytes
    waiting = job.element_bytes * (elements - ended)
    return Made((sent - coming) / shards, waiting + coming * (1 + 1 / shards))


def last_coming_bytes(job: Job, stage: int, parameters: float) -> float:
    """What comes back of the messages that ZeRO-1 and 2 have on their way when the last backward of
    several, which alone sends, is over the stage's last blocks, which have so many parameters."""
    if job.plan.zero not in (1, 2) or job.microbatches == 1:
        return 0.0
    if not in_messages(job) or in_halves(job, job.rank_of[stage]):
        return 0.0
    full = full_messages(job, stage, parameters)
    under_way = full[-ReduceScattered.most_under_way :]
    return job.sum_bytes * sum(message.elements for message in under_way) / job.plan.shards


def first_sent_bytes(job: Job, stage: int, before: float) -> float:
    """More on its way when a block's largest matrix was sent, while the gradient of another is
    made.

    Args:
        before: gradients that are there when the block's backward begins.
    """
    if job.shape.held:
        matrices = [math.prod(held.on(job.plan.tp)) for held in job.block if len(held.sizes) > 1]
    else:
        matrices = [linear.parameters / job.plan.tp for linear in job.shape.block]
    then = before + max(matrices) + job.largest_block - sum(matrices)
    if full_messages(job, stage, before) == full_messages(job, stage, then):
        return 0.0
    ways = [made_bytes(job, stage, elements, 0).on_the_way for elements in (before, then)]
    return max(0.0, ways[1] - ways[0])


def message_work_bytes(job: Job, stage: int, before: float, after: float) -> float:
    """While messages are made that are full when `after` gradients are there and were not with
    `before`: what is copied into the largest, and the message that ZeRO-1 and 2 wait for."""
    if not sends_now(job, job.rank_of[stage]):
        return 0.0
    begun, full = (full_messages(job, stage, elements) for elements in (before, after))
    copied = max((message.copied for message in full[len(begun) :]), default=0)
    too_many = job.plan.zero and len(begun) < len(full) > ReduceScattered.most_under_way
    waits = full[-1 - ReduceScattered.most_under_way].elements if too_many else 0
    return job.sum_bytes * (copied + waits * (1 + 1 / job.plan.shards))


def unsent_bytes(job: Job, rank: int) -> float:
    """Gradients that ZeRO-1 and 2 have whole until they send them: those that come after their
    block's backward, added up; and those of a rank that has too few for two messages.
    """
    if job.plan.zero not in (1, 2):
        return 0.0
    if in_halves(job, rank):
        return 4 * job.parameters_of(rank)
    at_once = one_message(job, rank) and job.microbatches == 1
    return job.element_bytes * job.parameters_of(rank) if at_once else 0.0


def last_message_bytes(job: Job, rank: int, gradients: float) -> float:
    """All gradients of a rank when its last message is made, which is a copy of what it sends, and
    for ZeRO-1 and 2 this rank's part of what comes back.

    Args:
        gradients: when all are there.
    """
    if not in_messages(job):
        return 0.0
    shards = job.plan.shards if job.plan.zero else math.inf
    first = list(itertools.islice(messages(job, rank), 1 + ReduceScattered.most_under_way))
    if one_message(job, rank):
        earlier = job.plan.zero == 2 and job.microbatches > 1 and not job.plan.splits_backward
        every = job.sum_bytes * first[0].elements
        gradients = every + (every / shards if earlier else 0.0)
    elif job.plan.zero and sends_now(job, rank):
        return 0.0
    back = itertools.accumulate(message.elements / shards for message in first)
    most = max(message.copied + sums for message, sums in zip(first, back, strict=True))
    # one parameter's is sent as it is, or brought to the dtype of sums first
    whole = (job.element_bytes + job.sum_bytes) * first[0].elements
    brought = whole + gradients - job.sum_bytes * first[0].elements
    alone = job.plan.precision != "fp32" and first[0].parameters == 1
    return max(gradients + job.sum_bytes * most, brought if alone else 0.0)


def sent_last_bytes(job: Job, rank: int) -> float:
    """This rank's share of the first message of what waited so."""
    if not unsent_bytes(job, rank):
        return 0.0
    return job.sum_bytes * next(messages(job, rank)).elements / job.plan.shards
