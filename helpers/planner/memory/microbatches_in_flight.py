"""How many micro-batches a pipeline rank has begun and not ended, at its fullest.

    in_flight(job, rank)           # when most of them keep all their activations
    put_off(job, rank)             # when most of them wait for the gradients of weights alone

Backward in halves frees a block's activations after the gradients of its inputs, but for what its
weights' gradients are made from.

Source: the orders of schedules.py, which tests/planner/memory/test_microbatches_in_flight.py walks.
"""

from typing import NamedTuple

from helpers.planner.model.training_job import Job


class Flight(NamedTuple):
    """Pairs of stage and micro-batch of one rank.

    whole: those whose backward is still to come. halved: those whose weights' gradients are.
    """

    whole: int
    halved: int = 0


def in_halves(job: Job, rank: int) -> bool:
    """Are gradients of weights made later than those of inputs? Not where no rank waits for the
    inputs', the first of `zero-bubble`."""
    return job.plan.splits_backward and (rank > 0 or job.plan.schedule != "zero-bubble")


def in_flight(job: Job, rank: int) -> Flight:
    """When most activations are kept."""
    plan, m, p = job.plan, job.microbatches, job.plan.pp
    if p == 1 or plan.schedule == "naive":
        return Flight(1)
    if plan.schedule == "gpipe":
        return Flight(m)
    if plan.schedule == "1f1b":
        return Flight(min(m, p - rank))
    if plan.schedule == "zero-bubble":
        whole = min(m, p - rank)
        return Flight(whole, min(m, p) - whole)
    if plan.schedule == "zero-bubble-v":
        return Flight(min(m, 2 * p - rank - 1) + min(m, rank + 1))
    v = plan.stages // p
    round_size = -(-m // max(1, m // p))
    return Flight(min(v * m, (v - 1) * round_size + 2 * (p - 1 - rank) + 1))


def put_off(job: Job, rank: int) -> Flight:
    """When most gradients of weights wait: after the last gradient of inputs before one of them."""
    m, p = job.microbatches, job.plan.pp
    if not in_halves(job, rank):
        return Flight(0)
    if job.plan.schedule == "zero-bubble":
        halved = min(m, rank + 1)
        return Flight(min(m, p) - halved, halved)
    # near the end of a V, when its rank's two stages have had all their forwards
    m = min(m, 2 * p - 1)
    down, up = min(rank, max(0, m - p + 1)), min(rank, max(0, m - 2 * p + 1 + rank))
    next_down = min(1, max(0, m - p + 1 - down))
    return Flight(max(0, m - p + 1 - down - next_down), max(1, down + up + next_down))
