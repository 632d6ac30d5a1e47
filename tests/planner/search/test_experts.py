"""Plans whose data ranks deal experts out: when a search takes them, and what is said of them."""

from dataclasses import replace

import pytest

pytest.importorskip("transformers")
import transformers

from helpers.engine.plan import ParallelPlan
from helpers.planner import estimate, explain, make_cluster, search_plans
from helpers.planner.search.layouts import sharded_plans
from helpers.planner.search.planned import Choice

QWEN3_30B = transformers.Qwen3MoeConfig(  # as published
    vocab_size=151936,
    hidden_size=2048,
    num_hidden_layers=48,
    moe_intermediate_size=768,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
)
ONE, TWO = (make_cluster("p5.48xlarge", nodes=nodes) for nodes in (1, 2))


def taking(samples: int, ep: int, nodes: int = 2) -> Choice:
    """A step of two nodes, each of which has a copy, or of one."""
    plan = ParallelPlan(dp_replicate=nodes, dp_shard=8, ep=ep, precision="bf16", activation="full")
    return estimate(QWEN3_30B, plan, TWO if nodes == 2 else ONE, samples * nodes * 8, 2048)


@pytest.mark.long
def test_few_tokens_are_sent_sooner_than_all_weights_and_many_later() -> None:
    """A gather of weights hides behind computing that takes longer; of tokens nothing does."""
    few, many = ({ep: taking(samples, ep).time for ep in (1, 8)} for samples in (1, 16))
    assert few[8].total_s < few[1].total_s
    assert many[8].data_s > many[1].data_s
    assert few[8].compute_s == pytest.approx(few[1].compute_s)


@pytest.mark.long
def test_a_search_deals_experts_out_where_that_is_the_fastest() -> None:
    found = search_plans(QWEN3_30B, ONE, batch=16, seq_len=2048)
    dealt = [choice for choice in found.choices if choice.plan.ep > 1]
    assert dealt and all(choice.plan.ep == choice.plan.shards for choice in dealt)
    for choice in dealt:  # the same by the formulas as it was found
        again = estimate(QWEN3_30B, choice.plan, ONE, 16, 2048)
        assert (again.memory, again.time) == (choice.memory, choice.time)
        gathered = estimate(QWEN3_30B, replace(choice.plan, ep=1), ONE, 16, 2048)
        assert not gathered.fits or gathered.time.total_s >= choice.time.total_s


def test_each_rank_gets_as_many_experts() -> None:
    plan = ParallelPlan(dp_replicate=16)
    assert {one.ep for one in sharded_plans(plan, TWO, experts=12)} == {1, 2, 4}
    assert {one.ep for one in sharded_plans(plan, TWO)} == {1}
    over_rows = ParallelPlan(dp_replicate=8, cp=2)
    for one in sharded_plans(over_rows, TWO, experts=12):
        assert one.ep in (1, one.shards) and 12 % one.ep == 0
    assert {one.ep for one in sharded_plans(over_rows, TWO, experts=16)} == {1, 2, 4, 8, 16}


@pytest.mark.long
def test_what_is_said_of_it_tells_what_gathered_weights_would_take() -> None:
    found = search_plans(QWEN3_30B, ONE, batch=16, seq_len=2048)
    dealt = next(choice for choice in found.choices if choice.plan.ep > 1)
    said = explain(replace(found, choices=(dealt,)))
    assert f"with ep={dealt.plan.ep}, ZeRO-3" in said
    assert "\nWith experts gathered, and not tokens, it would " in said
    assert "\nWithout sharding the state over " in said
