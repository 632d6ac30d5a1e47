"""Memory and traffic of a rank by category: against the papers, the schedules and real layouts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import Cost, Costs, balance
from helpers.engine.plan import ParallelPlan
from helpers.planner import cost
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.memory.components import activation_bytes, states_bytes
from helpers.planner.memory.peak import fullest, rank_memory
from helpers.planner.model.training_job import _balance_costs, balanced_layers, make_job
from helpers.planner.published.audit_shapes import GPTJ_6B, gpt, llama
from helpers.planner.time import messages as traffic

SMALL = gpt(64, 12, 4, vocab=500, positions=64)


def job(shape=GPTJ_6B, batch=32, seq_len=1024, **plan):
    return make_job(shape, ParallelPlan(**plan), batch, seq_len)


def test_the_parts_add_up_to_the_model():
    """Over tensor and pipeline ranks: every parameter once, what is replicated tp times, and a
    tied matrix at both ends."""
    for shape in (GPTJ_6B, SMALL, llama(64, 8, 4, 2, 160, 500)):
        one = job(shape, 8, 64)
        assert one.held(0) == cost.parameters(shape)
        cut = job(shape, 8, 64, pp=4, microbatches=4)
        again = shape.vocab * shape.hidden if shape.tied else 0
        assert sum(cut.held(rank) for rank in range(4)) == cost.parameters(shape) + again
        split = job(shape, 8, 64, tp=2)
        assert split.held(0) == cost.tensor_parallel_share(shape, 2).total


@pytest.mark.parametrize(
    ("plan", "per_parameter"),
    [
        ({}, (4, 4, 8)),
        ({"dp_replicate": 4}, (4, 4, 8)),
        ({"dp_shard": 4, "zero_stage": 1}, (4, 1, 2)),
        ({"dp_shard": 4, "zero_stage": 2}, (4, 1, 2)),
        ({"dp_shard": 4, "zero_stage": 3}, (1, 1, 2)),
        ({"precision": "bf16"}, (2, 4, 12)),
        ({"precision": "bf16", "reduce_dtype": "bf16"}, (2, 2, 12)),
        ({"precision": "bf16", "dp_shard": 4, "zero_stage": 1}, (2, 1, 3)),
        ({"precision": "bf16", "dp_shard": 4, "zero_stage": 1, "microbatches": 2}, (2, 4, 3)),
        ({"precision": "bf16", "dp_shard": 4, "zero_stage": 2, "microbatches": 2}, (2, 1, 3)),
        ({"precision": "bf16", "dp_shard": 4}, (1, 1, 2)),
    ],
)
def test_bytes_of_the_state_of_a_parameter(plan, per_parameter):
    held = cost.parameters(GPTJ_6B)
    found = states_bytes(job(**plan), 0)
    assert found == pytest.approx([held * each for each in per_parameter], rel=1e-6)


def test_sharding_and_recomputation_save_in_their_order():
    """Each saver of the list needs less memory than the one before."""
    ladder = [
        {"dp_replicate": 8},
        {"dp_shard": 8, "zero_stage": 1},
        {"dp_shard": 8, "zero_stage": 3},
        {"dp_shard": 8, "activation": "selective"},
        {"dp_shard": 8, "activation": "full"},
        {"dp_shard": 8, "activation": "full", "offload": True},
    ]
    totals = [fullest(job(precision="bf16", batch=256, **plan)).total for plan in ladder]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == len(totals)


def test_a_pipeline_keeps_as_much_as_its_first_rank():
    made = job(pp=4, microbatches=8, precision="bf16", batch=8)
    first, last = activation_bytes(made, 0), activation_bytes(made, 3)
    assert first == 4 * last * made.layers_of(0) / made.layers_of(3)
    assert rank_memory(made, 3).logits > 0 == rank_memory(made, 0).logits


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 40),
    st.integers(1, 12),
    st.integers(32, 600),
    st.sampled_from([50, 500, 5000]),
    st.booleans(),
)
def test_layers_are_balanced_as_the_engine_does(layers, stages, hidden, vocab, gated):
    if stages > layers:
        return
    hidden -= hidden % 4
    shape = (
        llama(hidden, layers, 4, 4, 2 * hidden, vocab)
        if gated
        else gpt(hidden, layers, 4, vocab, 64)
    )
    embedding, layer, head = _balance_costs(shape)
    costs = Costs(Cost(embedding, 0), (Cost(layer, 0),) * layers, Cost(head, 0))
    theirs, ours = balance(costs, stages, 0.0), balanced_layers(shape, stages)
    assert sum(ours) == layers

    def loads(counts):
        each = [count * layer for count in counts]
        each[0] += embedding
        each[-1] += head
        return max(each), sum(load**2 for load in each)

    largest, squares = loads(theirs)
    assert loads(ours) == pytest.approx((largest, squares), rel=1e-9)


def test_tensor_messages_are_the_older_formulas():
    for shape in (GPTJ_6B, SMALL):
        made = job(shape, batch=4, seq_len=64, tp=4)
        messages = traffic.tensor_messages(made, 0)
        older = cost.tensor_parallel_traffic_bytes(shape, 4, 64, 4)
        found = {"blocks": 0.0, "embedding": 0.0, "head": 0.0, "loss": 0.0}
        for message in messages:
            found[message.what.split(":")[0]] += message.count * message.payload_bytes
        assert found == {name: getattr(older, name) for name in found}


def test_sequence_parallelism_sends_the_same_bytes_in_blocks():
    """Gather and scatter are the two halves of a reduction; only a second norm of one input, which
    is gathered apart, adds to them."""
    for shape in (GPTJ_6B, SMALL):
        plain = job(shape, batch=4, seq_len=64, tp=4)
        split = job(shape, batch=4, seq_len=64, tp=4, sequence_parallel=True)
        sent = [
            sum(m.sent_bytes for m in traffic.tensor_messages(made, 0) if m.what == "blocks")
            for made in (plain, split)
        ]
        assert sent[0] == sent[1]


def test_zero_1_sends_what_ddp_sends_and_zero_3_the_blocks_once_more():
    """arXiv 1910.02054, section 7, with float32 alike for sums and parameters. Embedding and head
    stay gathered from forward to backward."""
    held = 4 * cost.parameters(GPTJ_6B)
    blocks = 4 * GPTJ_6B.layers * GPTJ_6B.block_parameters
    share = 7 / 8

    def sent(**plan):
        return sum(m.sent_bytes for m in traffic.data_messages(job(**plan), 0))

    assert sent(dp_replicate=8) == pytest.approx(2 * held * share)
    assert sent(dp_shard=8, zero_stage=1) == pytest.approx(2 * held * share)
    assert sent(dp_shard=8, zero_stage=3) == pytest.approx((2 * held + blocks) * share)
    inside = sent(dp_replicate=4, dp_shard=2, zero_stage=3)
    assert inside == pytest.approx((2 * held + blocks) / 2 + held * 2 * 3 / 4 / 2)


def test_a_pipeline_sends_hidden_states_once_each_way():
    made = job(SMALL, batch=8, seq_len=64, pp=4, microbatches=8)
    hidden = 64 * 64 * 4
    first, middle = (traffic.pipeline_messages(made, rank) for rank in (0, 1))
    assert sum(m.sent_bytes for m in middle) == 2 * 8 * hidden
    onward = sum(m.sent_bytes for m in first if m.what == "hidden states")
    assert onward == 8 * hidden
    tied = [m for m in first if m.what == "tied matrix"]
    assert tied[0].payload_bytes == 500 * 64 * 4


def test_groups_over_nodes_go_at_the_pace_of_their_way_out():
    cluster = make_cluster("p4d.24xlarge", nodes=4)
    made = job(tp=8, dp_shard=4)
    assert traffic.link_of(made, cluster, "tp") == cluster.intra
    alone = traffic.link_of(made, cluster, "dp_shard")  # one rank a node: one eighth of the network
    assert alone.bytes_per_s == cluster.inter.bytes_per_s
    together = traffic.link_of(job(dp_shard=32), cluster, "dp_shard")
    assert together.bytes_per_s == 8 * cluster.inter.bytes_per_s
    spread = job(tp=8, dp_shard=4, placement="spread")
    assert traffic.link_of(spread, cluster, "dp_shard") == cluster.intra


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"seq_len": 12.5}, "seq_len must be a whole number of at least 1, not 12.5"),
        ({"tp": 3}, "tp=3 does not divide 16 heads"),
        ({"pp": 29}, "29 stages are too many for 28 layers"),
        ({"tp": -2}, "tp must be a whole number of at least 1, not -2"),
        ({"dp_shard": 1.5}, "dp_shard must be a whole number of at least 1, not 1.5"),
        ({"pp": 2, "partition": "10,10"}, "the partition 10,10 has 20 layers, the model 28"),
    ],
)
def test_a_job_that_makes_no_sense(arguments, words):
    with pytest.raises(UserError, match=words):
        job(**arguments)
