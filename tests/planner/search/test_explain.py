"""The search's answer in words."""

import re

import pytest

from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.search.explain import explain
from helpers.planner.search.search import search_plans
from tests.planner.shapes import GPTJ_6B, gpt, llama

LLAMA2_70B = llama(8192, 80, 64, 8, 28672, vocab=32000)
P4D = make_cluster("p4d.24xlarge")


def test_the_answer_in_words():
    shape, cluster = gpt(12288, 96, 96, vocab=50257), make_cluster("p4de.24xlarge", nodes=128)
    found = search_plans(shape, cluster, batch=1536, seq_len=2048, tokens=300e9)
    text = explain(found, what_if=False)
    best = found.best
    assert best.plan.describe() in text
    assert f"{best.time.total_s:.2f} s" in text
    assert f"{best.memory.total / 2**30:.1f} of 79.1 GiB" in text
    low, high = best.range_s
    assert f"({low:.2f} s to {high:.2f} s)" in text
    assert "% of the peak (MFU)" in text and "dollars per million tokens" in text
    days = 300e9 / best.tokens_per_s / 86400
    assert f"{days:.3g} days ({days * best.range.low:.3g} to {days * best.range.high:.3g})" in text
    assert "Next best: " in text
    assert f"{found.ruled_out['does not fit']:,} do not fit" in text
    assert "300 billion tokens take" in text
    price = "27.4471 dollars an hour for a p4de.24xlarge, ec2's price on demand of 2026-11-28"
    assert f"Money is at {price} (us-east-1)." in text
    parts = next(line for line in text.splitlines() if line.startswith("Of the step: "))
    shares = [float(part.split()[0]) for part in parts.removeprefix("Of the step: ").split(", ")]
    assert 97 <= sum(shares) <= 103


def test_what_would_change_the_answer():
    found = search_plans(GPTJ_6B, P4D, batch=16, seq_len=1024)
    text = explain(found)
    for words in (
        "a network twice as fast",
        "twice the memory",
        "half the memory",
        "a batch twice",
    ):
        assert f"With {words}" in text
    line = next(line for line in text.splitlines() if "network twice" in line)
    assert "+0 % tokens/s" in line  # one node needs none


def test_why_a_saver_is_there():
    found = search_plans(LLAMA2_70B, make_cluster("p4d.24xlarge", nodes=32), 256, 4096)
    text = explain(found, what_if=False)
    assert "Without sharding the state" in text
    assert "Without recomputation" in text


def test_a_price_of_ones_own_has_no_date():
    own = make_cluster("p4d.24xlarge", usd_per_hour=10)
    text = explain(search_plans(GPTJ_6B, own, batch=16, seq_len=1024), what_if=False)
    assert "Money is at 10 dollars an hour for a p4d.24xlarge." in text
    none = make_cluster(gpu="H100-80", gpus=8, intra_gb_s=450)
    text = explain(search_plans(GPTJ_6B, none, batch=16, seq_len=1024), what_if=False)
    assert "Money" not in text


def test_less_than_ten_dollars_have_two_digits():
    found = search_plans(GPTJ_6B, P4D, batch=16, seq_len=1024, tokens=1e6)
    usd = 1e6 * found.best.usd_per_token
    assert 0.1 < usd < 1
    [said] = re.findall(r"and (0\.\d+) dollars \(0\.\d+ to 0\.\d+\)", explain(found, what_if=False))
    assert float(said) == pytest.approx(usd, rel=0.1)


def test_a_model_with_nothing_to_list():
    small = explain(search_plans(gpt(128, 2, 4, vocab=2048), P4D, batch=16, seq_len=64))
    assert ": ;" not in small and "most of it the allocator's" in small
