"""What runs beside what: messages beside computing but not beside messages on the same wire, and
the device's waiting for its host beside nothing."""

from dataclasses import replace

import pytest

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.published.models import published_model
from helpers.planner.search.estimate import estimate
from helpers.planner.time.messages import seconds
from helpers.planner.time.overlapped_messages import rank_messages
from tests.planner.shapes import gpt, llama


def hybrid(gpus: int, seq_len: int):
    """Two ranks share a copy's state, of 16, on machines of so many GPUs."""
    cluster = replace(make_cluster("dgx-b200"), devices_per_node=gpus, nodes=32 // gpus)
    plan = ParallelPlan(dp_replicate=16, dp_shard=2, precision="bf16", microbatches=1)
    return estimate(llama(4096, 8, 64, 32, 12288, 32000), plan, cluster, 32, seq_len)


def sent_s(found, axis: str) -> float:
    sent = [one for one in rank_messages(found.job, 0) if one.axis == axis]
    return sum(one.count * seconds(found.job, found.cluster, one) for one in sent)


@pytest.mark.parametrize("seq_len", (1, 512, 2048, 4096))
def test_sums_of_replicas_hide_behind_computing_and_not_behind_messages_on_their_wire(seq_len):
    """On machines of one GPU both axes leave it by the same card: no step is shorter than what goes
    over that card."""
    found = hybrid(1, seq_len)
    assert found.time.total_s > sent_s(found, "dp_shard") + sent_s(found, "dp_replicate")


def test_sums_of_replicas_run_beside_messages_on_another_wire():
    """Inside a machine the shards' messages go over NVLink."""
    found = hybrid(2, 1)
    computing_s = found.time.compute_s + found.time.host_s
    hidden_s = sent_s(found, "dp_shard") + sent_s(found, "dp_replicate") - found.time.data_s
    assert hidden_s > 1.5 * computing_s


def by_stage(program: str, microbatches: int):
    """Nemotron-4 340B as NeMo lays it out, on machines whose network is the slowest way."""
    cluster = make_cluster("dgx-b200", nodes=16)
    plan = ParallelPlan(
        tp=8, sequence_parallel=True, pp=4, dp_shard=4, zero_stage=1, precision="bf16",
        reduce_dtype="bf16", schedule="interleaved", virtual_stages=12, microbatches=microbatches,
    )  # fmt: skip
    shape = published_model("nemotron4-340b").shape
    return estimate(shape, plan, cluster, 4 * microbatches, 4096, program=program).time


def test_messages_of_a_stage_run_beside_a_round_through_the_rank_s_other_stages():
    """Gradients of 11 of 12 stages are on their way while four micro-batches go through the others:
    0.51 seconds showed, and 0.09 do."""
    of_stages, at_the_end = (by_stage(f"megatron-{year}", 8).data_s for year in (2025, 2024))
    assert 0 < of_stages < at_the_end / 5


def test_a_round_is_of_as_many_micro_batches_as_there_are():
    """One leaves the messages as little room as there is where all are sent at the end."""
    shown_s = [by_stage("megatron-2025", microbatches).data_s for microbatches in (1, 2, 4, 8)]
    assert shown_s[0] == pytest.approx(by_stage("megatron-2024", 1).data_s, rel=0.02)
    assert shown_s[0] > shown_s[1] > shown_s[2] == pytest.approx(shown_s[3])


def test_waiting_for_the_host_is_no_computing():
    """Of split backwards the weights' half waits, too: it was counted as computing."""
    plan = ParallelPlan(pp=4, schedule="zero-bubble", precision="bf16", microbatches=8)
    cluster = make_cluster("p4d.24xlarge", gpus=4)
    quick, slow = (
        estimate(gpt(512, 16, 8), plan, replace(cluster, host_operation_s=s), 8, 512).time
        for s in (0.0, 1e-4)
    )
    assert slow.compute_s == pytest.approx(quick.compute_s)
    assert slow.host_s > quick.host_s
