"""The published GPT-J run, from its own log."""

import math

import pytest

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.planner import cost
from helpers.planner.hardware.lookup import find_gpu, price
from helpers.planner.published.posts import find_post
from helpers.planner.shape.families import model_shape

pytest.importorskip("transformers")
RUN = find_post("gptj-tensor-parallel")


def test_published_run_audited():
    shape = model_shape(load_config("gptj-6b"))
    assert cost.parameters(shape) == RUN.parameters
    tokens_per_s = RUN.steady_samples_per_s * RUN.seq_len
    peak = find_gpu("A100-40").peak_flops["fp16"]
    assert 6 * RUN.parameters * tokens_per_s / 8 / 1e12 == pytest.approx(68.1, abs=0.05)
    utilisation = cost.mfu(tokens_per_s, 6 * RUN.parameters, 8, peak)
    assert utilisation == pytest.approx(0.218, abs=0.0005)


def test_printed_rate_is_above_the_chips_peak_and_refused():
    """The script printed 8N·tokens/s without dividing by the 8 devices: 726 'TFLOPS/GPU' of 312."""
    peak = find_gpu("A100-40").peak_flops["fp16"]
    line = RUN.log[3]
    tokens_per_s = line.samples_per_s * RUN.seq_len
    printed = tokens_per_s * 8 * RUN.parameters
    assert printed / 1e12 == pytest.approx(line.printed_tflops_per_gpu, rel=1e-4)
    with pytest.raises(UserError, match=r"2\.33 times .*more than the chip's peak"):
        cost.mfu(tokens_per_s, 8 * RUN.parameters, 1, peak)


def test_published_run_billed():
    per_hour = price(RUN.instance, service="sagemaker").usd_per_hour
    assert per_hour == RUN.price.usd_per_hour == 37.688
    assert cost.money(RUN.billed_s, per_hour) == pytest.approx(19.22, abs=0.005)
    assert 0.034 <= RUN.train_s / RUN.billed_s <= 0.035
    assert sum(RUN.timeline_s.values()) == 1965


def test_log_loss_starts_at_a_guess_over_the_vocabulary():
    """The 'fine-tuning' began from random weights: its first loss is ln(50400) or more."""
    assert RUN.log[0].loss > math.log(load_config("gptj-6b").vocab_size)


def test_another_posts_bill():
    """Two machines for the time that it says it trained."""
    post = find_post("neox-sharded")
    usd = cost.money(post.train_s, post.price.usd_per_hour, post.instances)
    assert usd == pytest.approx(197, abs=0.5)
