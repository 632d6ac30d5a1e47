"""What a search cannot answer is one clear line, whatever is asked."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.model.adapters import Adapters
from helpers.planner.search.estimate import estimate
from helpers.planner.search.request import GOALS
from helpers.planner.search.search import search_plans
from tests.planner.shapes import GPTJ_6B, gpt

GPT3 = gpt(12288, 96, 96, vocab=50257)
P4D = make_cluster("p4d.24xlarge")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"batch": -8}, "batch must be a whole number of at least 1, not -8"),
        ({"seq_len": 10.5}, "seq_len must be a whole number of at least 1, not 10.5"),
        ({"by": "beauty"}, "plans are ranked by time, cost, cost under a deadline, not 'beauty'"),
        ({"precision": "fp8"}, "has no matrix products in fp8; it has fp32, tf32, bf16, fp16"),
        ({"clusters": ()}, "give at least one cluster"),
        ({"by": "cost under a deadline"}, "belong together: give both or neither"),
        ({"deadline_s": 60.0}, "belong together: give both or neither"),
        ({"tokens": "1e9"}, "tokens must be a number above 0, not '1e9'"),
        ({"tokens": float("nan")}, "tokens must be a number above 0, not nan"),
        ({"model": "gptj-6b"}, "is a name: give its configuration, load_config\\('gptj-6b'\\)"),
        ({"tokens": -1.0}, "tokens must be a number above 0, not -1.0"),
        (
            {"by": "cost under a deadline", "deadline_s": 60.0},
            "a deadline needs the number of tokens",
        ),
        (
            {"by": "cost under a deadline", "deadline_s": 0.0, "tokens": 1e9},
            "deadline_s must be a number above 0, not 0.0",
        ),
        (
            {"by": "cost", "clusters": (make_cluster("dgx-a100"),)},
            "no price is known for dgx-a100: give make_cluster its usd_per_hour",
        ),
        ({"model": GPT3}, "the model does not fit 1 x p4d.24xlarge"),
        ({"batch": 1, "clusters": (make_cluster("p4d.24xlarge", 1000),)}, "take more samples"),
        (
            {"by": "cost under a deadline", "deadline_s": 3600.0, "tokens": 1e12},
            "cannot be met: the fastest plan",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_line(change, words):
    question = {"model": GPTJ_6B, "clusters": (P4D,), "batch": 16, "seq_len": 1024} | change
    with pytest.raises(UserError, match=words) as caught:
        search_plans(**question)
    assert "\n" not in str(caught.value)


def test_a_model_that_does_not_fit_says_what_would():
    with pytest.raises(UserError) as caught:
        search_plans(GPT3, P4D, 512, 2048)
    text = str(caught.value)
    nodes = int(text.split("; ")[1].split()[0])
    assert search_plans(GPT3, replace(P4D, nodes=nodes), 512, 2048).best
    with pytest.raises(UserError, match="does not fit"):
        search_plans(GPT3, replace(P4D, nodes=nodes // 4), 512, 2048)


def test_a_model_too_large_for_any_number_of_nodes():
    giant = gpt(2**20, 96, 128)
    with pytest.raises(UserError, match="no number of these nodes would do: take larger"):
        search_plans(giant, P4D, 8, 2048)


@pytest.mark.long
def test_a_deadline_that_cannot_be_met_says_how_many_nodes_could():
    ask = {"batch": 1024, "seq_len": 1024, "tokens": 1e11, "by": "cost under a deadline"}
    with pytest.raises(UserError) as caught:
        search_plans(GPTJ_6B, P4D, **ask, deadline_s=86400.0)
    nodes = int(re.search(r"(\d+) nodes would do", str(caught.value))[1])
    assert search_plans(GPTJ_6B, replace(P4D, nodes=nodes), **ask, deadline_s=86400.0)


ANYTHING = st.one_of(
    st.integers(-3, 300), st.floats(), st.booleans(), st.none(), st.sampled_from(["4", "", "auto"])
)
SMALL, FOUR = gpt(64, 4, 4, vocab=500, positions=64), make_cluster("p3.8xlarge")


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {"batch": ANYTHING, "seq_len": ANYTHING},
        optional={
            "by": st.sampled_from([*GOALS, "x"]),
            "tokens": ANYTHING,
            "deadline_s": ANYTHING,
            "precision": st.sampled_from(["fp16", "fp32", "bf16", "int4"]),
        },
    )
)
def test_whatever_is_asked_the_answer_fits_or_is_one_line(question):
    try:
        best = search_plans(SMALL, FOUR, **question).best
    except UserError as error:
        assert error.args and "\n" not in str(error)
    else:
        assert best.plan.world_size == 4
        assert best.memory.total <= FOUR.memory_bytes


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["tp", "pp", "dp_shard", "dp_replicate"]), ANYTHING),
    st.one_of(ANYTHING, st.just(1)),
    st.one_of(ANYTHING, st.none()),
    st.sampled_from(["p3.8xlarge", "p4d", "", "H100"]),
)
def test_an_estimate_of_whatever_is_given_is_one_line_or_its_size(degrees, nodes, usd, instance):
    try:
        cluster = make_cluster(instance, nodes, usd_per_hour=usd)
        found = estimate(SMALL, ParallelPlan(**degrees), cluster, 16, 32)
    except UserError as error:
        assert error.args and "\n" not in str(error)
    else:
        assert found.plan.world_size == cluster.devices
        assert found.time.total_s > 0


def test_work_of_which_no_row_was_published_has_the_widest_range():
    p5 = make_cluster("p5.48xlarge")
    plan = ParallelPlan(dp_shard=8, precision="bf16")
    dense = estimate(load_config("llama2-7b"), plan, p5, 8, 2048, program="megatron")
    lora = estimate(
        load_config("llama2-7b"), plan, p5, 8, 2048, program="megatron", adapters=Adapters(rank=8)
    )
    assert (dense.range.kind, lora.range.kind) == ("known", "new work")
    assert lora.range.low < dense.range.low and lora.range.high > dense.range.high


def test_no_utilisation_is_above_1():
    """Of a narrow model with a large table the FLOPs are mostly that of what multiplies nothing."""
    config = load_config("gpt2-tiny", n_positions=65536, vocab_size=128)
    choice = estimate(config, ParallelPlan(), make_cluster("p5.48xlarge", gpus=1), 64, 64)
    assert choice.mfu(1e12) is None
    assert 0 < choice.mfu(1e18) < 1
