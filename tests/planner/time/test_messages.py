"""Messages of each axis, against the papers and closed forms."""

import math
from dataclasses import replace

import pytest

from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner import cost
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.model.block_tensors import program_for
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.shape.families import model_shape
from helpers.planner.time.data_messages import data_messages
from helpers.planner.time.messages import link_of, seconds
from helpers.planner.time.overlapped_messages import shared_s
from helpers.planner.time.pipeline_messages import pipeline_messages
from helpers.planner.time.tensor_messages import shared_messages, tensor_messages, tensor_traffic
from tests.planner.shapes import GPTJ_6B, SMALL, job, llama
from tests.support import tiny


def test_tensor_traffic_in_closed_form():
    """2·reductions·layers messages of tokens x hidden elements, one each for embedding and head,
    and three numbers of 4 bytes per token for the loss."""
    for shape in (GPTJ_6B, SMALL):
        for precision, element in (("fp32", 4), ("bf16", 2)):
            message = 4 * 64 * shape.hidden * element
            sent = tensor_traffic(shape, 4, 64, tp=4, precision=precision)
            assert sent.blocks == 2 * shape.reductions * shape.layers * message
            assert (sent.embedding, sent.head, sent.loss) == (message, message, 3 * 4 * 4 * 64)


def test_sequence_parallelism_sends_the_same_bytes_in_blocks():
    """Gather and scatter are the two halves of a reduction; only a second norm of one input, which
    is gathered apart, adds to them."""
    two_norms = model_shape(load_config("neox-tiny"))
    for shape, more in ((GPTJ_6B, 1.0), (SMALL, 1.0), (two_norms, 1.5)):
        plain = job(shape, batch=4, seq_len=64, tp=4)
        split = job(shape, batch=4, seq_len=64, tp=4, sequence_parallel=True)
        sent = [
            sum(m.sent_bytes for m in tensor_messages(made, 0) if m.what == "blocks")
            for made in (plain, split)
        ]
        assert sent[0] * more == sent[1]


def test_zero_1_sends_what_ddp_sends_and_zero_3_the_blocks_once_more():
    """arXiv 1910.02054, section 7, with float32 alike for sums and parameters. Embedding and head
    stay gathered from forward to backward."""
    held = 4 * cost.parameters(GPTJ_6B)
    blocks = 4 * GPTJ_6B.layers * GPTJ_6B.block_parameters
    share = 7 / 8

    def sent(**plan):
        return sum(m.sent_bytes for m in data_messages(job(**plan), 0))

    assert sent(dp_replicate=8) == pytest.approx(2 * held * share)
    assert sent(dp_shard=8, zero_stage=1) == pytest.approx(2 * held * share)
    assert sent(dp_shard=8, zero_stage=3) == pytest.approx((2 * held + blocks) * share)
    over_copies = held * 2 * 3 / 4 / 2
    inside = sent(dp_replicate=4, dp_shard=2, zero_stage=3)
    assert inside == pytest.approx((2 * held + blocks) / 2 + over_copies)
    for stage in (1, 2):
        inside = sent(dp_replicate=4, dp_shard=2, zero_stage=stage)
        assert inside == pytest.approx(2 * held / 2 + over_copies)


def counts(made: Job) -> list[int]:
    return [message.count for message in data_messages(made, 0)]


def test_zero_3_sends_unit_by_unit_in_every_micro_batch():
    """Blocks, together where they are recomputed together; and what is in none, which is gathered
    once, forward."""
    shard = {"dp_shard": 8, "microbatches": 3}
    assert counts(job(SMALL, 24, 64, **shard)) == [3 * 13, 3 * 12, 3 * 13]
    assert counts(job(SMALL, 24, 64, **shard, activation="group_5")) == [3 * 4, 3 * 3, 3 * 4]
    by_turns = {"pp": 2, "schedule": "interleaved", "virtual_stages": 2, "microbatches": 4}
    assert counts(job(SMALL, 8, 64, dp_shard=2, **by_turns)) == [4 * 7, 4 * 6, 4 * 7, 4]


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble-v"])
def test_ends_are_gathered_for_the_backward_of_each_stage_of_a_rank(schedule):
    virtual = {"virtual_stages": 2} if schedule == "interleaved" else {}
    plan = ParallelPlan(pp=2, dp_shard=2, schedule=schedule, microbatches=4, **virtual)
    config = tiny.config("llama", 8)
    made = make_job(config, plan, 8, 32)
    for rank in range(2):
        dry = dry_run(config, plan, rank * made.stride("pp"), batch=8, seq_len=32)
        gathered = sum(
            count * message.payload_bytes
            for message, count in dry.messages.items()
            if (message.axis, message.kind) == ("dp_shard", "all_gather")
        )
        said = (m for m in data_messages(made, rank) if m.kind == "all_gather")
        assert sum(m.count * m.payload_bytes for m in said) == pytest.approx(gathered, rel=5e-3)


@pytest.mark.parametrize(
    ("stage", "schedule", "times"), [(1, "1f1b", 1), (2, "1f1b", 4), (2, "zero-bubble", 1)]
)
def test_zero_2_sends_in_every_micro_batch_what_is_complete_there(stage, schedule, times):
    plan = {"pp": 2, "dp_shard": 2, "zero_stage": stage, "microbatches": 4, "schedule": schedule}
    assert counts(job(SMALL, 8, 64, **plan)) == [times, 1]


def test_a_message_may_be_the_longer_the_more_ranks_it_goes_to():
    made = job(dp_replicate=64, batch=64)
    program = replace(made.program, bucket_bytes=8e7, bucket_rank_bytes=2e6)
    whole = 4 * cost.parameters(GPTJ_6B)
    assert counts(replace(made, program=program)) == [math.ceil(whole / 128e6)]


def test_a_pipeline_sends_hidden_states_once_each_way():
    made = job(SMALL, batch=8, seq_len=64, pp=4, microbatches=8)
    hidden = 64 * 64 * 4
    first, middle = (pipeline_messages(made, rank) for rank in (0, 1))
    assert sum(m.sent_bytes for m in middle) == 2 * 8 * hidden
    onward = sum(m.sent_bytes for m in first if m.what == "hidden states")
    assert onward == 8 * hidden
    tied = [m for m in first if m.what == "tied matrix"]
    assert tied[0].payload_bytes == 500 * 64 * 4


def test_groups_over_nodes_go_at_the_pace_of_their_way_out():
    cluster = make_cluster("p4d.24xlarge", nodes=4)
    made = job(tp=8, dp_shard=4)
    assert link_of(made, cluster, "tp") == cluster.intra
    alone = link_of(made, cluster, "dp_shard")  # one rank per node: one eighth of the network
    assert alone.bytes_per_s == cluster.inter.bytes_per_s
    together = link_of(job(dp_shard=32), cluster, "dp_shard")
    assert together.bytes_per_s == 8 * cluster.inter.bytes_per_s
    spread = job(tp=8, dp_shard=4, placement="spread")
    assert link_of(spread, cluster, "dp_shard") == cluster.intra


def test_what_is_recomputed_is_sent_again_but_for_its_end():
    """GPT-J's blocks have one region: its sum is not needed again. GPT's have two."""
    for shape, again in ((GPTJ_6B, 0), (SMALL, 1)):
        made = job(shape, batch=4, seq_len=64, tp=4, activation="full")
        sent = [m for m in tensor_messages(made, 0) if m.when == "again"]
        assert sum(m.count for m in sent) == again * shape.layers
        assert {m.kind for m in sent} <= {"all_reduce"}


@pytest.mark.parametrize(
    ("program", "agree"),
    [("engine", True), ("engine-compiled", True), ("megatron", False), ("torchtitan", False)],
)
def test_scales_of_8_bits_are_sent_by_who_agrees_on_them(program: str, agree: bool):
    made, cluster = job(GPTJ_6B, tp=4, precision="fp8"), make_cluster("dgx-h100")
    made = replace(made, program=program_for(program, GPTJ_6B, made.plan, cluster, 1024))
    scales = [m for m in tensor_messages(made, 0) if m.what == "blocks: scales"]
    assert bool(scales) == agree


def test_every_message_of_what_tensor_ranks_share_takes_its_time():
    """Of one key-value head, whose gradients go in several messages: they were timed as one."""
    made, cluster = job(llama(4096, 32, 32, 1, 11008), tp=8), make_cluster("p4d.24xlarge")
    [shared] = shared_messages(made, 0)
    assert shared.count > 1
    each_s = seconds(made, cluster, shared)
    assert shared_s(made, cluster, 0) == pytest.approx(shared.count * each_s)
