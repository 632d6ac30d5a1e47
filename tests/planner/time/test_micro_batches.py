"""Rows that do not divide by micro-batches: some have one row more, and a step takes what its rows
take."""

import pytest

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.search.estimate import estimate
from tests.planner.shapes import llama

MODEL, MACHINE = llama(4096, 32, 32, 8, 14336), make_cluster("dgx-h100")


def asked(batch, microbatches, **plan):
    plan = ParallelPlan(precision="bf16", microbatches=microbatches, **plan)
    return estimate(MODEL, plan, MACHINE, batch, 2048)


def test_one_row_more_takes_what_it_takes():
    """All 16 micro-batches were as long as the only one that has two rows."""
    less, one_more, twice = (asked(rows, 16, tp=8).time for rows in (16, 17, 32))
    assert one_more.total_s == pytest.approx(15 / 16 * less.total_s + 1 / 16 * twice.total_s)


@pytest.mark.parametrize("plan", ({"schedule": "1f1b"}, {"schedule": "zero-bubble"}))
def test_a_pipeline_is_not_slower_because_its_micro_batches_differ(plan):
    even, uneven = (asked(18, count, tp=2, pp=4, **plan) for count in (18, 17))
    assert uneven.time.total_s == pytest.approx(even.time.total_s, rel=0.03)


def test_memory_is_that_of_the_largest():
    one_more, twice = (asked(rows, 16, tp=8).memory for rows in (17, 32))
    assert one_more.total == twice.total


def test_a_micro_batch_without_rows_computes_one():
    """As the engine's some_rows."""
    assert asked(3, 4, tp=8).time == asked(4, 4, tp=8).time
