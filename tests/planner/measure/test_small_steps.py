"""What operations and messages take, found again from steps whose seconds are known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link
from helpers.planner.measure.small_steps import LEAST_S, fitted, small_jobs
from helpers.planner.time.step_time import step_time

P4D = make_cluster("p4d.24xlarge")
LINKS = {kind: Link(1e9, 1e-4) for kind in ("all_reduce", "all_gather", "reduce_scatter", "send")}
CORES = replace(
    P4D,
    together=2.0,
    overlaps=False,
    host_operation_s=0.0,
    generation="",
    multiprocessors=0,
    measured=LINKS,
)


def machine(operation_s: float, message_s: float) -> Cluster:
    longer = {
        kind: replace(link, latency_s=link.latency_s + message_s)
        for kind, link in LINKS.items()
        if kind != "send"
    }
    return replace(CORES, operation_s=operation_s, measured=LINKS | longer)


def steps(cluster: Cluster, ranks: int) -> list[list[tuple]]:
    """Of the small jobs, by whether they have few messages or many."""
    return [[(job, step_time(job, cluster).total_s) for job in jobs] for jobs in small_jobs(ranks)]


@settings(max_examples=8, deadline=None)
@given(
    operation_s=st.floats(1e-5, 1e-3),
    message_s=st.floats(1e-5, 2e-3),
    ranks=st.sampled_from([2, 3, 4]),
)
def test_what_was_put_in_is_found(operation_s, message_s, ranks):
    found = fitted(CORES, "operation_s", *steps(machine(operation_s, message_s), ranks))
    assert found.operation_s == pytest.approx(operation_s, rel=0.02)
    extra_s = found.measured["all_reduce"].latency_s - LINKS["all_reduce"].latency_s
    assert extra_s == pytest.approx(message_s, rel=0.02)
    assert found.measured["send"] == LINKS["send"]


def test_one_gpu_has_operations_and_no_messages():
    """They are started by its host."""
    true = replace(P4D, host_operation_s=2e-4)
    found = fitted(P4D, "host_operation_s", *steps(true, 1))
    assert found.host_operation_s == pytest.approx(2e-4, rel=1e-3)
    assert found.measured == P4D.measured


def test_steps_that_are_quicker_than_all_else_leave_nothing_for_operations():
    quick = [[(job, 1e-9) for job in jobs] for jobs in small_jobs(4)]
    assert fitted(CORES, "operation_s", *quick).operation_s < 2 * LEAST_S
