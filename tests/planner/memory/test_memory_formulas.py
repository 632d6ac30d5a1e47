"""Memory and traffic of a rank by category: against the papers, the schedules and real layouts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import Cost, Costs, balance
from helpers.engine.plan import ParallelPlan
from helpers.planner import cost
from helpers.planner.memory.activations import activation_bytes, kept_bytes
from helpers.planner.memory.peak import fullest, rank_memory
from helpers.planner.memory.states import rank_states
from helpers.planner.model.stage_layers import balance_costs, balanced_layers
from helpers.planner.model.training_job import make_job
from helpers.planner.published.models import published_model
from tests.planner.shapes import GPTJ_6B, SMALL, gpt, job, llama


def test_the_parts_add_up_to_the_model():
    """Over tensor and pipeline ranks: every parameter once, what is replicated tp times, and a
    tied matrix at both ends."""
    for shape in (GPTJ_6B, SMALL, llama(64, 8, 4, 2, 160, 500)):
        one = job(shape, 8, 64)
        assert one.parameters_of(0) == cost.parameters(shape)
        cut = job(shape, 8, 64, pp=4, microbatches=4)
        again = shape.vocab * shape.hidden if shape.tied else 0
        assert sum(cut.parameters_of(rank) for rank in range(4)) == cost.parameters(shape) + again
        split = job(shape, 8, 64, tp=2)
        assert split.parameters_of(0) == cost.tensor_parallel_share(shape, 2).total


SPLIT_BACKWARD = {"pp": 2, "dp_shard": 4, "microbatches": 2, "schedule": "zero-bubble"}


@pytest.mark.parametrize(
    ("plan", "per_parameter"),
    [
        ({}, (4, 4, 8)),
        ({"dp_replicate": 4}, (4, 4, 8)),
        ({"dp_shard": 4, "zero_stage": 1}, (4, 1, 2)),
        ({"dp_shard": 4, "zero_stage": 2}, (4, 1, 2)),
        ({"dp_shard": 4, "zero_stage": 3}, (1, 1, 2)),
        ({"precision": "bf16"}, (2, 4, 12)),
        ({"precision": "bf16", "reduce_dtype": "bf16"}, (2, 4, 12)),  # added up in float32
        ({"precision": "bf16", "dp_shard": 4, "zero_stage": 1}, (2, 1, 3)),
        ({"precision": "bf16", "dp_shard": 4, "zero_stage": 1, "microbatches": 2}, (2, 4, 3)),
        ({"precision": "bf16", "dp_shard": 4, "zero_stage": 2, "microbatches": 2}, (2, 1, 3)),
        ({"precision": "bf16", "dp_shard": 4}, (1, 1, 2)),
        ({**SPLIT_BACKWARD, "zero_stage": 1}, (4, 4, 2)),
        ({**SPLIT_BACKWARD, "zero_stage": 2}, (4, 4, 2)),  # complete at the end of all
    ],
)
def test_bytes_of_the_state_of_a_parameter(plan, per_parameter):
    made = job(**plan)
    held, states = made.parameters_of(0), rank_states(made, 0)
    expected = [held * each for each in per_parameter]
    assert list(vars(states).values()) == pytest.approx(expected, rel=1e-6)


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


def test_blocks_that_are_recomputed_together_keep_one_input():
    one, five = (job(SMALL, 8, 64, activation=kind) for kind in ("full", "group_5"))
    assert kept_bytes(five, 12) * 4 == kept_bytes(one, 12)  # of five, five and two blocks


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
    embedding, layer, head = balance_costs(shape)
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


@pytest.mark.parametrize(
    ("schedule", "virtual", "microbatches"),
    [("interleaved", 2, 8), ("interleaved", 4, 9), ("zero-bubble-v", 0, 8), ("1f1b", 0, 8)],
)
def test_no_rank_holds_more_than_the_fullest(schedule, virtual, microbatches):
    """A rank in the middle of the pipeline held up to 10 % more, and was not asked."""
    shape = published_model("llama2-70b").shape
    plan = ParallelPlan(
        pp=8,
        schedule=schedule,
        virtual_stages=virtual,
        microbatches=microbatches,
        activation="full",
    )
    job = make_job(shape, plan, 2 * microbatches, 2048)
    every = [rank_memory(job, rank).total for rank in range(plan.pp)]
    assert fullest(job).total == max(every)
