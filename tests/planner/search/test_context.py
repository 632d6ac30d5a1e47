"""When the search splits rows over ranks, when it does not, and how it says so."""

from collections import Counter

import pytest

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.model.training_job import make_job
from helpers.planner.search.explain import explain
from helpers.planner.search.layouts import context_degrees, unsharded_plans
from helpers.planner.search.search import search_plans
from helpers.train.arguments import parse
from tests.planner.shapes import GPTJ_6B, gpt, llama
from tests.planner.work import calls_of

LLAMA3_8B = llama(4096, 32, 32, 8, 14336)
GPT3 = gpt(12288, 96, 96, vocab=50257, positions=65536)
P5 = make_cluster("p5.48xlarge")


@pytest.fixture(scope="module")
def long_row():
    """One row of 128k tokens on eight GPUs."""
    return search_plans(LLAMA3_8B, P5, batch=1, seq_len=131072)


def test_a_long_row_is_split(long_row):
    best = long_row.best
    assert best.plan.cp > 1
    assert best.memory.total <= P5.memory_bytes
    whole = [choice for choice in long_row.choices if choice.plan.cp == 1]
    assert all(choice.time.total_s > best.time.total_s for choice in whole)


def test_it_is_said_in_words(long_row):
    text, plan = explain(long_row, what_if=False), long_row.best.plan
    assert f"lies over {plan.cp} ranks, {131072 // plan.cp:,} on each" in text
    assert f"attention by {plan.cp_attention} sees them all" in text
    assert "data ranks for 1 sample." in text
    for way in {"ring", "gather", "ulysses"} - {plan.cp_attention}:
        assert f"With {way} it would" in text


def test_the_command_starts_it(long_row):
    words = long_row.command("llama3-8b").split()
    args = parse(words[words.index("helpers.train") + 1 :])
    fields = {name: getattr(args, name) for name in ParallelPlan().to_dict()}
    assert ParallelPlan(**fields) == long_row.best.plan


@pytest.mark.parametrize(
    ("ranks", "batch", "seq_len", "degrees"),
    [
        (8, 64, 2048, [1]),  # short rows, and enough of them
        (8, 4, 2048, [1]),  # too short to have parts
        (8, 4, 4096, [1, 2]),
        (8, 64, 8192, [1, 2, 4]),
        (12, 1, 131072, [1, 2, 3, 4, 6, 12]),
    ],
)
def test_degrees_that_are_tried(ranks, batch, seq_len, degrees):
    assert context_degrees(ranks, batch, seq_len) == degrees


def test_every_way_that_is_tried_is_one_that_the_engine_takes():
    """Of 16 heads and as many of keys over 24 devices, ulysses is not tried where cp is 3."""
    ruled_out = Counter()
    cluster = make_cluster("p5.48xlarge", nodes=3)
    plans = list(unsharded_plans(GPTJ_6B, cluster, 8, 32768, "bf16", ruled_out))
    for plan in plans:
        make_job(GPTJ_6B, plan, 8, 32768)
    tried = {(plan.cp, plan.cp_attention) for plan in plans if plan.tp == 1}
    assert {(3, "ring"), (3, "gather"), (8, "ulysses")} <= tried
    assert (3, "ulysses") not in tried
    with pytest.raises(UserError, match="cp_attention=ulysses gives every rank a head"):
        make_job(GPTJ_6B, ParallelPlan(cp=3, cp_attention="ulysses"), 8, 32768)


@pytest.mark.long
def test_175b_over_1024_gpus_over_every_axis():
    """8 million calls, which take 1.3 to 1.9 s here."""
    cluster = make_cluster("p4de.24xlarge", nodes=128)
    found = search_plans(GPT3, cluster, batch=64, seq_len=65536)
    assert found.best.plan.cp > 1
    first = "from tests.planner.search.test_context import GPT3, make_cluster, search_plans"
    line = 'search_plans(GPT3, make_cluster("p4de.24xlarge", 128), batch=64, seq_len=65536)'
    assert calls_of(line, first) < 10e6
