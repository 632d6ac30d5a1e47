"""What operations and messages take, found again from steps whose seconds are known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link
from helpers.planner.measure.small_steps import SECONDS, fitted, small_jobs
from helpers.planner.time.step_time import step_time

P4D = make_cluster("p4d.24xlarge")
LINKS = {kind: Link(1e9, 1e-4) for kind in ("all_reduce", "all_gather", "reduce_scatter", "send")}


def cores(ranks: int) -> Cluster:
    return replace(
        P4D,
        devices_per_node=ranks,
        device="cpu",
        together=2.0,
        overlaps=False,
        host_operation_s=0.0,
        generation="",
        multiprocessors=0,
        measured=LINKS,
        matmul_flops={"fp32": 1e11},
        attention_flops={"fp32": 5e10},
        others_bytes_per_s=1e10,
    )


def steps(cluster: Cluster) -> dict[str, list[tuple]]:
    """Of the small jobs, by what is found from them."""
    return {
        what: [(job, step_time(job, cluster).total_s) for job in jobs]
        for what, jobs in small_jobs(cluster).items()
    }


@settings(max_examples=8, deadline=None)
@given(
    operation_s=st.floats(1e-5, 1e-3),
    times=st.floats(1.0, 3.0),
    reduced_s=st.floats(1e-5, 2e-3),
    gathered_s=st.floats(1e-5, 2e-3),
    unit_s=st.floats(1e-5, 2e-3),
    ranks=st.sampled_from([2, 3, 4]),
)
def test_what_was_put_in_is_found(operation_s, times, reduced_s, gathered_s, unit_s, ranks):
    extra = {"all_reduce": reduced_s, "all_gather": gathered_s, "reduce_scatter": gathered_s}
    longer = {
        kind: replace(LINKS[kind], latency_s=LINKS[kind].latency_s + seconds)
        for kind, seconds in extra.items()
    }
    true = replace(
        cores(ranks),
        operation_s=operation_s,
        unit_s=unit_s,
        matmul_flops={"fp32": 1e11 / times},
        attention_flops={"fp32": 5e10 / times},
        others_bytes_per_s=1e10 / times,
        measured=LINKS | longer,
    )
    found = fitted(cores(ranks), steps(true))
    assert found.operation_s == pytest.approx(operation_s, rel=0.02)
    assert found.unit_s == pytest.approx(unit_s, rel=0.02)
    for name in ("matmul_flops", "attention_flops"):
        assert getattr(found, name)["fp32"] == pytest.approx(getattr(true, name)["fp32"], rel=0.02)
    assert found.others_bytes_per_s == pytest.approx(true.others_bytes_per_s, rel=0.02)
    for kind, link in true.measured.items():
        assert found.measured[kind].latency_s == pytest.approx(link.latency_s, rel=0.02)
        assert found.measured[kind].bytes_per_s == link.bytes_per_s


def test_one_gpu_has_operations_and_no_messages():
    """They are started by its host."""
    one = replace(P4D, devices_per_node=1)
    found = fitted(one, steps(replace(one, host_operation_s=2e-4)))
    assert found.host_operation_s == pytest.approx(2e-4, rel=1e-3)
    assert replace(found, host_operation_s=None) == one


def test_steps_that_are_quicker_than_all_else_leave_nothing_for_operations():
    quick = {what: [(job, 1e-9) for job in jobs] for what, jobs in small_jobs(cores(4)).items()}
    found = fitted(cores(4), quick)
    assert found.operation_s < 2 * SECONDS[0]
    assert found.others_bytes_per_s == pytest.approx(1e10)
