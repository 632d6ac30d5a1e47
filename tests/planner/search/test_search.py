"""The search for a plan: valid, fitting, best of all, explained, and clear about what cannot be."""

import shlex
from collections import Counter
from dataclasses import replace

import pytest

from helpers.engine.errors import UserError
from helpers.engine.models.families import FAMILIES
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.lookup import find_gpu
from helpers.planner.memory.peak import fullest
from helpers.planner.model.training_job import make_job
from helpers.planner.search.estimate import estimate
from helpers.planner.search.layouts import ACTIVATIONS, divisors, layouts, pipelines, shardings
from helpers.planner.search.search import search_plans
from helpers.planner.time.step_time import step_time
from helpers.train.arguments import parse
from tests.planner.shapes import GPTJ_6B, gpt
from tests.planner.work import calls_of

GPT3 = gpt(12288, 96, 96, vocab=50257)
P4D, P4DE = make_cluster("p4d.24xlarge"), make_cluster("p4de.24xlarge", nodes=128)


@pytest.fixture(scope="module")
def gpt3_found():
    """GPT-3 over 1,024 GPUs."""
    return search_plans(GPT3, P4DE, batch=1536, seq_len=2048, tokens=300e9)


def test_175b_over_1024_gpus(gpt3_found):
    """As the published runs of this size: tp within a node, a pipeline or shards over nodes, 40 to
    60 % of the peak."""
    found = gpt3_found
    best = found.best
    assert best.plan.world_size == 1024
    assert best.memory.total <= best.cluster.memory_bytes
    assert best.plan.tp <= 8
    assert 0.40 < best.mfu(find_gpu("A100-80").peak_flops["bf16"]) < 0.65
    assert found.choices == tuple(sorted(found.choices, key=lambda c: c.time.total_s))


def test_an_answer_is_a_line_in_a_notebook(gpt3_found):
    """It was 17,000 letters, and a plan's own 4,000."""
    best, shown = gpt3_found.best, repr(gpt3_found)
    assert repr(best) in shown and len(shown) < 300 and "\n" not in shown
    words = f"{best.time.total_s:.3g} s a step, {best.memory.total / 2**30:.1f} of "
    assert words in repr(best) and repr(best).endswith("GiB, fits)")
    too_much = estimate(GPT3, ParallelPlan(tp=8, dp_shard=128), P4DE, 1536, 2048)
    assert not too_much.fits and repr(too_much).endswith("GiB, does not fit)")


def test_its_work_is_bounded():
    """10.48 million calls, which take 0.9 to 1.7 s here."""
    first = "from tests.planner.search.test_search import GPT3, P4DE, search_plans"
    line = "search_plans(GPT3, P4DE, batch=1536, seq_len=2048, tokens=300e9)"
    assert calls_of(line, first) < 10.5e6


def test_nothing_that_was_not_kept_is_better():
    """Every plan of the space, by brute force, on eight GPUs."""
    found = search_plans(GPTJ_6B, P4D, batch=16, seq_len=1024)
    best_s = found.best.time.total_s
    for tp, pp, _, dp in layouts(GPTJ_6B, P4D, 16, 1024, Counter()):
        for how in pipelines(pp, -(-16 // dp), GPTJ_6B.layers):
            for shard, stage in shardings(dp, 8 // tp):
                for activation, offload in ACTIVATIONS:
                    plan = ParallelPlan(
                        tp=tp, pp=pp, dp_replicate=dp // shard, dp_shard=shard, zero_stage=stage,
                        activation=activation, offload=offload, precision="bf16", **how,
                    )  # fmt: skip
                    job = make_job(GPTJ_6B, plan, 16, 1024, device=P4D.device)
                    if fullest(job).total <= P4D.memory_bytes:
                        assert step_time(job, P4D, "quick").total_s >= best_s * 0.999, plan


def test_every_choice_is_a_plan_that_the_engine_takes(gpt3_found):
    found = gpt3_found
    for choice in found.choices:
        choice.plan.validate(world_size=choice.cluster.devices)
        plan = ParallelPlan(**choice.plan.to_dict())
        rebuilt = make_job(GPT3, plan, 1536, 2048, device=choice.cluster.device)
        assert fullest(rebuilt).total == choice.memory.total


def test_the_posts_gptj_on_one_p4d():
    """Its 6 billion parameters do not fit a 40 GiB GPU whole, and need no recomputation sharded."""
    found = search_plans(GPTJ_6B, P4D, batch=16, seq_len=1024)
    assert found.best.plan.dp_shard * found.best.plan.tp * found.best.plan.pp > 1
    assert found.best.plan.activation == "none"
    assert "does not fit" in found.ruled_out


def test_cheap_savers_come_before_costly_ones():
    """As memory shrinks, the plan saves more, and takes no less time."""
    steps, costs = [], []
    order = {saver: place for place, saver in enumerate(ACTIVATIONS)}
    for gib in (400, 60, 32, 24):
        cluster = replace(P4D, memory_bytes=gib * 2**30)
        best = search_plans(GPTJ_6B, cluster, batch=64, seq_len=2048).best
        steps.append(best.time.total_s)
        costs.append((best.plan.dp_shard > 1, order[best.plan.activation, best.plan.offload]))
    assert steps == sorted(steps)
    assert costs[0] <= costs[-1]
    assert costs[0][1] == 0  # with plenty of memory nothing is computed again


def test_ranked_by_cost_a_cheap_machine_can_win():
    clusters = [make_cluster("p4d.24xlarge"), make_cluster("p5.48xlarge")]
    fast = search_plans(GPTJ_6B, clusters, 64, 1024).best
    cheap = search_plans(GPTJ_6B, clusters, 64, 1024, by="cost").best
    assert fast.cluster.name == "p5.48xlarge"
    assert cheap.usd_per_token <= fast.usd_per_token


def test_a_cluster_that_is_given_twice_is_one():
    once, twice = (search_plans(GPTJ_6B, [P4D] * times, 16, 1024) for times in (1, 2))
    assert (twice.choices, twice.tried) == (once.choices, once.tried)


def test_the_cheapest_under_a_deadline():
    sizes = [make_cluster("p4d.24xlarge", nodes=n) for n in (1, 2, 4, 8)]
    ask = {"batch": 256, "seq_len": 1024, "tokens": 1e9}
    slow = search_plans(GPTJ_6B, sizes, **ask, by="cost").best
    takes_s = 1e9 / slow.tokens_per_s
    by = "cost under a deadline"
    quick = search_plans(GPTJ_6B, sizes, **ask, by=by, deadline_s=takes_s / 2).best
    assert quick.cluster.nodes > slow.cluster.nodes
    assert 1e9 / quick.tokens_per_s <= takes_s / 2


def test_the_command_starts_what_was_chosen():
    found = search_plans(GPTJ_6B, make_cluster("p4d.24xlarge", nodes=2), batch=16, seq_len=1024)
    command = found.command("gptj-6b")
    words = shlex.split(command)
    assert words[:3] == ["torchrun", "--nnodes", "2"]
    assert "--nproc-per-node 8 -m helpers.train " in command
    args = parse(words[words.index("helpers.train") + 1 :])
    fields = {name: getattr(args, name) for name in ParallelPlan().to_dict()}
    assert ParallelPlan(**fields) == found.best.plan
    assert (args.model, args.batch_size, args.seq_len) == ("gptj-6b", 16, 1024)
    words = shlex.split(found.command("my models/gptj; true", "my scripts/train.py"))
    assert words[words.index("--model") + 1] == "my models/gptj; true"
    assert "my scripts/train.py" in words


def test_every_family_has_plans():
    from transformers import AutoConfig

    for family in FAMILIES:
        config = AutoConfig.for_model(family)
        if family == "falcon":
            config.num_attention_heads, config.hidden_size = 64, 4096  # 71 heads cannot be split
        assert search_plans(config, replace(P4D, nodes=2), 16, 512).best.plan.world_size == 16


def test_divisors():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(1) == [1]


def test_an_estimate_needs_as_many_devices_as_ranks():
    with pytest.raises(
        UserError, match=r"the plan has 4 ranks \(tp=4\), but 1 x p4d.24xlarge has 8"
    ):
        estimate(GPTJ_6B, ParallelPlan(tp=4), P4D, 16, 1024)
