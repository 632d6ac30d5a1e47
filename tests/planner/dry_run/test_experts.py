"""Experts that ranks deal out: the formulas against dry runs, of types and plans of all kinds."""

import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers")
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.dry_run.experts_again import sums_again
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.memory.peak import rank_memory
from helpers.planner.memory.states import rank_states
from helpers.planner.model.training_job import make_job
from helpers.planner.search.estimate import estimate
from helpers.planner.search.explain import explain
from helpers.planner.search.request import Question
from helpers.planner.search.search import SearchResult
from helpers.planner.shape.families import model_shape
from tests.planner.dry_run.test_dry_run import seen, sent
from tests.support.matrix import part
from tests.support.scripts import script

small_config = script("docs/small_models").small_config
EP = {"dp_shard": 8, "ep": 8, "precision": "bf16", "microbatches": 1}


def narrow(**fields: Any) -> Any:
    return transformers.Qwen3MoeConfig(
        **{
            "num_hidden_layers": 4,
            "vocab_size": 4096,
            "hidden_size": 256,
            "intermediate_size": 512,
            "moe_intermediate_size": 256,
            "num_attention_heads": 8,
            "head_dim": 32,
            "num_key_value_heads": 2,
            "num_experts": 16,
            "num_experts_per_tok": 4,
        }
        | fields
    )


def same_work(config: Any, plan: ParallelPlan, seq_len: int) -> list[float]:
    """All ranks of the pipeline hold what they do in a dry run, and send it along the data axes;
    but for the few numbers of a router that do not train, of which the formulas count moments.
    Of each rank's peak there, the share that the formulas say."""
    shares = []
    batch = 2 * plan.dp * plan.microbatches
    job = make_job(config, plan, batch, seq_len, device="cuda")
    for rank in range(plan.pp):
        first = rank * job.stride("pp")
        dry = dry_run(config, plan, first, batch=batch, seq_len=seq_len, device="meta")
        assert tuple(vars(rank_states(job, rank)).values()) == pytest.approx(
            tuple(dry.states.values()), rel=1e-3
        )
        assert of_data(sent(job, rank)) == pytest.approx(of_data(seen(dry)), rel=0.01)
        shares.append(rank_memory(job, rank, context_bytes=0).allocated / dry.peak_bytes)
    return shares


def of_data(messages: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    return {key: count for key, count in messages.items() if key[0].startswith("dp")}


# after the sums: a norm; nothing, for the shared expert is computed before; nothing
AGAIN = {"flex_olmo": True, "ernie4_5_moe": False, "phimoe": False}
MORE = {"qwen2_moe": True, "dots1": True, "deepseek_v3": True, "gpt_oss": False}


@pytest.mark.parametrize(("model_type", "again"), part(AGAIN.items(), MORE.items()))
def test_recomputation_gets_to_the_sums_where_something_is_computed_after_them(
    model_type: str, again: bool
) -> None:
    config = small_config(model_type)
    assert sums_again(model_shape(config).source) is again
    same_work(config, ParallelPlan(dp_shard=2, ep=2, activation="full", microbatches=1), 64)


@pytest.mark.long
def test_what_is_kept_of_a_window_in_a_model_with_few_positions() -> None:
    """Its masks and scores are seen in rows longer than the window, of which there are few."""
    config = transformers.GptOssConfig(
        num_hidden_layers=4,
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=8,
        num_experts_per_tok=2,
        sliding_window=128,
        max_position_embeddings=2048,
    )
    plan = ParallelPlan(dp_shard=4, ep=4, precision="bf16", microbatches=1)
    said = rank_memory(make_job(config, plan, 8, 512, device="cuda"), 0, context_bytes=0).allocated
    dry = dry_run(config, plan, batch=8, seq_len=512, device="meta")
    assert said == pytest.approx(dry.peak_bytes, rel=0.05)


@pytest.mark.long
def test_what_a_plan_would_take_without_recomputation_is_with_its_ep() -> None:
    config, cluster = narrow(), make_cluster("dgx-h100", nodes=1)
    full, none = (
        estimate(config, ParallelPlan(**EP, activation=how), cluster, 32, 1024)
        for how in ("full", "none")
    )
    question = Question(full.job.shape, (cluster,), 32, 1024, "bf16", "time", None, None, None)
    words = explain(SearchResult(question, (full,), 1, {}), what_if=False)
    [less] = re.findall(r"Without recomputation it would fit, and take (.*) % less time", words)
    expected = 100 * (1 - none.time.total_s / full.time.total_s)
    assert float(less) == pytest.approx(expected, abs=0.1)


def test_another_program_does_not_gather_experts_that_are_dealt_out() -> None:
    config, cluster = narrow(num_experts=128), make_cluster("dgx-h100", nodes=1)
    dealt, gathered = (
        estimate(config, ParallelPlan(**EP | {"ep": ep}), cluster, 32, 64, program="torchtitan")
        for ep in (8, 1)
    )
    experts = 128 * 3 * 256 * 256
    spared = gathered.memory.transients - dealt.memory.transients
    assert spared >= 2 * 2 * experts  # in 16 bits, the buffer and its copy


def test_a_shape_without_its_configuration() -> None:
    shape = replace(model_shape(narrow()), source=None)
    with pytest.raises(UserError, match=r"^how many experts a token of qwen3_moe goes to is said"):
        make_job(shape, ParallelPlan(**EP), 32, 1024)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@settings(max_examples=40, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "dp_shard": st.sampled_from((2, 4)),
            "dp_replicate": st.sampled_from((1, 2)),
            "cp": st.sampled_from((1, 1, 2)),
            "tp": st.sampled_from((1, 2)),
            "precision": st.sampled_from(("fp32", "bf16", "fp16")),
            "activation": st.sampled_from(("none", "selective", "full", "group_2")),
        }
    ),
    st.sampled_from(
        (
            {"microbatches": 1},
            {"microbatches": 3},
            {"pp": 2, "microbatches": 3},
            {"pp": 2, "microbatches": 4, "schedule": "gpipe"},
            {"pp": 2, "microbatches": 2, "schedule": "zero-bubble"},
            {"pp": 2, "microbatches": 4, "schedule": "zero-bubble-v"},
            {"pp": 2, "microbatches": 4, "schedule": "interleaved", "virtual_stages": 2},
        )
    ),
    st.sampled_from((4, 5)),
)
def test_any_plan_holds_and_sends_what_a_dry_run_does(
    degrees: dict[str, Any], pipeline: dict[str, Any], layers: int
) -> None:
    plan = ParallelPlan(ep=degrees["dp_shard"] * degrees["cp"], **degrees, **pipeline)
    same_work(narrow(num_hidden_layers=layers), plan, 256)
