"""The search with a frozen base and with another optimizer: it asks what `estimate` answers."""

import shlex
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("peft")
from helpers.engine.adapters.qlora import check_layout
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.model.adapters import Adapters
from helpers.planner.search.estimate import estimate
from helpers.planner.search.explain import explain
from helpers.planner.search.layouts import ACTIVATIONS, layouts, pipelines, savers, shardings
from helpers.planner.search.search import search_plans
from helpers.train.arguments import parse
from tests.planner.shapes import gpt, llama
from tests.planner.work import calls_of

G5, P5 = make_cluster("g5.12xlarge"), make_cluster("p5.48xlarge")
QLORA = Adapters(64, "nf4")
SMALL = llama(1024, 6, 16, 4, 2816, vocab=32000)


def search_falcon(**more):
    return search_plans(load_config("falcon-40b"), G5, 4, 2048, adapters=QLORA, **more)


@pytest.fixture(scope="module")
def falcon():
    """The question of the post: Falcon-40B by QLoRA on four GPUs of 24 GB."""
    return search_falcon()


@st.composite
def questions(draw):
    layers, heads = draw(st.integers(1, 12)), draw(st.sampled_from((4, 8)))
    hidden = heads * draw(st.sampled_from((64, 128, 256)))
    shape = draw(
        st.sampled_from(
            (llama(hidden, layers, heads, 2, 3 * hidden), gpt(hidden, layers, heads, 50257))
        )
    )
    nodes = draw(st.sampled_from((1, 2)))
    machine = make_cluster(draw(st.sampled_from(("g5.12xlarge", "p4d.24xlarge"))), nodes)
    quantize = draw(st.sampled_from((None, "nf4")))
    adapters = draw(st.sampled_from((None, Adapters(draw(st.integers(1, 64)), quantize))))
    return {
        "model": shape,
        "clusters": replace(machine, memory_bytes=draw(st.sampled_from((2, 4, 24))) * 2**30),
        "batch": draw(st.sampled_from((4, 16, 33))),
        "seq_len": draw(st.sampled_from((512, 2048))),
        "precision": draw(st.sampled_from(("fp32", "bf16"))),
        "adapters": adapters,
        "optimizer": draw(st.sampled_from(("adamw", "adamw8bit"))),
    }


@settings(deadline=None, max_examples=25, derandomize=True, phases=[Phase.generate])
@given(questions())
def test_every_plan_that_is_ranked_has_the_figures_of_an_estimate(question):
    try:
        found = search_plans(**question)
    except UserError as error:
        assert "does not fit" in str(error) or "no layout" in str(error)
        return
    work = [question[name] for name in ("batch", "seq_len")]
    what = {name: question[name] for name in ("adapters", "optimizer")}
    for choice in found.choices:
        asked = estimate(question["model"], choice.plan, choice.cluster, *work, **what)
        assert asked.memory == choice.memory
        assert vars(asked.time) == pytest.approx(vars(choice.time), rel=1e-9, abs=1e-12)
        assert asked.fits and choice.fits


def test_nothing_that_was_not_kept_is_faster(falcon):
    """Every plan that the engine takes with adapters, by brute force."""
    config, best_s, tried = load_config("falcon-40b"), falcon.best.time.total_s, 0
    for tp, pp, cp, dp in layouts(falcon.question.shape, G5, 4, 2048, Counter()):
        for how in pipelines(pp, -(-4 // dp), 60):
            for shard, stage in shardings(dp, 4 // tp, cp):
                for activation, offload in ACTIVATIONS:
                    plan = ParallelPlan(
                        tp=tp, pp=pp, cp=cp, dp_replicate=dp // shard, dp_shard=shard,
                        zero_stage=stage, activation=activation, offload=offload,
                        precision="bf16", **how,
                    )  # fmt: skip
                    try:
                        asked = estimate(config, plan, G5, 4, 2048, adapters=QLORA)
                    except UserError:
                        continue
                    tried += 1
                    if asked.fits:
                        assert asked.time.total_s >= 0.999 * best_s, plan
    assert tried > 30


def test_what_the_engine_refuses_is_left_out_with_its_words(falcon):
    for tp in (2, 4):
        with pytest.raises(UserError) as refusal:
            check_layout(ParallelPlan(tp=tp))
        assert falcon.ruled_out[str(refusal.value).partition(":")[0]] > 0
    assert any("zero-bubble puts off weight gradients" in reason for reason in falcon.ruled_out)
    assert all(c.plan.tp == 1 and not c.plan.splits_backward for c in falcon.choices)
    without = search_plans(SMALL, G5, 4, 2048)
    assert not any("adapters" in reason for reason in without.ruled_out)


def test_savers_without_a_formula_are_left_out():
    ruled_out = Counter()
    assert savers(SMALL, None, ruled_out) == ACTIVATIONS and not ruled_out
    assert "selective" not in dict(savers(SMALL, QLORA, ruled_out))
    assert [reason for reason in ruled_out if "activation=selective" in reason]


def test_falcon_by_qlora_on_four_gpus_of_24_gb(falcon):
    """Four data ranks that share the 4-bit base, for a pipeline waits and copies do not fit; one at
    work at a time, as the post had it, would take more than three times as long."""
    best = falcon.best
    assert best.plan.dp_shard == 4 and best.plan.zero == 3
    assert best.fits
    one_at_a_time = ParallelPlan(
        pp=4, microbatches=1, schedule="naive", precision="bf16", activation="full"
    )
    config = load_config("falcon-40b")
    published = estimate(config, one_at_a_time, G5, 4, 2048, adapters=QLORA)
    assert published.time.total_s / best.time.total_s > 3
    in_16_bits = Adapters(64)
    with pytest.raises(UserError, match=r"does not fit 1 x g5.12xlarge.*2 nodes would do"):
        search_plans(config, G5, 4, 2048, adapters=in_16_bits)


def test_words_and_command(falcon):
    text = explain(falcon, what_if=False)
    assert "Adapters of rank 64 train" in text and "4 bits (NF4)" in text
    assert "MFU" not in text and falcon.best.mfu(1e14) is None
    words = shlex.split(falcon.command("falcon-40b"))
    args = parse(words[words.index("helpers.train") + 1 :])
    assert (args.lora_rank, args.quantize, args.optimizer) == (64, "nf4", "adamw")
    eight = search_plans(SMALL, G5, 4, 2048, optimizer="adamw8bit")
    assert "The optimizer is adamw8bit." in explain(eight, what_if=False)
    assert "--optimizer adamw8bit" in eight.command("llama")
    plain = explain(search_plans(SMALL, G5, 4, 2048), what_if=False)
    assert "dapters" not in plain and "optimizer is" not in plain


def test_what_would_change_asks_the_same_question(falcon):
    """With half the memory it still is a frozen base in 4 bits that must fit."""
    line = next(line for line in explain(falcon).splitlines() if "twice the memory" in line)
    larger = replace(G5, memory_bytes=2 * G5.memory_bytes)
    other = search_plans(load_config("falcon-40b"), larger, 4, 2048, adapters=QLORA).best
    assert f"{100 * (other.tokens_per_s / falcon.best.tokens_per_s - 1):+.0f} % tokens/s" in line


def test_8_bit_moments_leave_room():
    """AdamW's float32 moments of a model that all trains do not fit where those in 8 bits do."""
    shape = llama(4096, 32, 32, 32, 11008, vocab=32000)
    tight = replace(G5, memory_bytes=25 * 2**30, host_memory_bytes=None)
    with pytest.raises(UserError, match="does not fit"):
        search_plans(shape, tight, 4, 1024)
    assert search_plans(shape, tight, 4, 1024, optimizer="adamw8bit").best.fits


def test_its_work_is_bounded():
    first = "from tests.planner.search.test_adapters import QLORA, gpt, make_cluster, search_plans"
    shape = "gpt(12288, 96, 96, vocab=50257), make_cluster('p4de.24xlarge', nodes=128)"
    line = f"search_plans({shape}, 1536, 2048, adapters=QLORA)"
    assert calls_of(line, first) < 10e6


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"adapters": 64}, "give adapters as Adapters"),
        ({"adapters": Adapters(0)}, "rank must be a whole number of at least 1"),
        ({"adapters": QLORA, "precision": "fp8", "clusters": P5}, "trains whole matrices"),
        ({"optimizer": "sgd"}, "optimizer is one of adamw, adamw8bit, not 'sgd'"),
    ],
)
def test_a_bad_question_is_one_line(ask, words):
    with pytest.raises(UserError, match=words) as refusal:
        search_plans(**{"model": SMALL, "clusters": G5, "batch": 4, "seq_len": 512} | ask)
    assert "\n" not in str(refusal.value)
