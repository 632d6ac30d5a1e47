"""What an operation takes, found again from steps whose seconds are known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.measure.small_steps import LEAST_S, fitted_s, small_jobs
from helpers.planner.time.step_time import step_time

P4D = make_cluster("p4d.24xlarge")
CORES = replace(
    P4D, together=2.0, overlaps=False, host_operation_s=0.0, generation="", multiprocessors=0
)
MACHINES = {"host_operation_s": P4D, "operation_s": CORES}


@pytest.mark.parametrize("field", MACHINES)
@settings(max_examples=20, deadline=None)
@given(each_s=st.floats(3e-5, 1e-3), ranks=st.sampled_from([1, 2, 3, 4, 8]))
def test_what_was_put_in_is_found(field, each_s, ranks):
    machine = replace(MACHINES[field], **{field: each_s})
    jobs = small_jobs(ranks)
    step_s = [step_time(job, machine).total_s for job in jobs]
    assert fitted_s(MACHINES[field], field, jobs, step_s) == pytest.approx(each_s, rel=1e-3)


def test_steps_that_are_quicker_than_all_else_leave_nothing_for_operations():
    jobs = small_jobs(4)
    assert fitted_s(CORES, "operation_s", jobs, [1e-9] * len(jobs)) == pytest.approx(LEAST_S)


def test_every_axis_counts_alike_however_long_its_step():
    """One layout's step of twice the seconds, and another's of half of them: the mean share is more
    than one, so an operation takes less."""
    machine = replace(CORES, operation_s=1e-4)
    jobs = small_jobs(4)
    exact = [step_time(job, machine).total_s for job in jobs]
    mixed = [exact[0] * 2, exact[1] / 2, *exact[2:]]
    assert fitted_s(CORES, "operation_s", jobs, mixed) < 0.9e-4
