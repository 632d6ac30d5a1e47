"""NeMo's published runs in 8 bits on DGX H100, to which nothing was fitted.

Source: NVIDIA, NeMo Framework User Guide, performance summaries of the containers 24.12 and 25.02,
read 2026-11-25: samples a step and of a micro-batch, tokens of a row, degrees, virtual stages, and
tokens per second and GPU.
"""

from statistics import mean
from typing import NamedTuple

import pytest

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.published.models import published_shape
from helpers.planner.search.estimate import estimate


class Published(NamedTuple):
    model: str
    gpus: int
    batch: int
    rows: int
    seq_len: int
    tp: int
    pp: int
    cp: int
    virtual: int
    tokens_per_s: float


PUBLISHED = (
    Published("gpt3-175b", 128, 256, 1, 2048, 4, 8, 1, 6, 716),
    Published("gpt3-175b", 512, 2048, 2, 2048, 4, 8, 1, 6, 825),
    Published("llama2-7b", 8, 128, 1, 4096, 1, 1, 1, 1, 16934),
    Published("llama2-13b", 16, 128, 1, 4096, 1, 4, 1, 10, 8715),
    Published("llama2-70b", 64, 128, 1, 4096, 4, 4, 1, 20, 1728),
    Published("llama3-8b", 8, 128, 1, 8192, 1, 1, 2, 1, 12273),
    Published("llama3-70b", 64, 128, 1, 8192, 4, 4, 2, 5, 1524),
    Published("nemotron4-340b", 128, 32, 1, 4096, 8, 8, 1, 12, 326),
    Published("gpt3-175b", 512, 2048, 2, 2048, 4, 8, 1, 6, 866),  # of 25.02
)


def predicted_s(run: Published, precision: str = "fp8") -> float:
    dp = run.gpus // (run.tp * run.pp * run.cp)
    several = {"schedule": "interleaved", "virtual_stages": run.virtual} if run.pp > 1 else {}
    over = {"cp_attention": "ring", "cp_split": "balanced"} if run.cp > 1 else {}
    plan = ParallelPlan(
        tp=run.tp, sequence_parallel=run.tp > 1, pp=run.pp, cp=run.cp, dp_shard=dp, zero_stage=1,
        microbatches=run.batch // dp // run.rows, precision=precision, reduce_dtype="bf16",
        **several, **over,
    )  # fmt: skip
    cluster = make_cluster("dgx-h100", nodes=run.gpus // 8)
    shape = published_shape(run.model)
    return estimate(shape, plan, cluster, run.batch, run.seq_len, program="megatron").time.total_s


def error(run: Published) -> float:
    measured_s = run.batch * run.seq_len / (run.tokens_per_s * run.gpus)
    return predicted_s(run) / measured_s - 1


def test_they_are_within_5_per_cent_in_the_mean():
    errors = [error(run) for run in PUBLISHED]
    assert mean(map(abs, errors)) < 0.05
    assert max(map(abs, errors)) < 0.1
    assert abs(mean(errors)) < 0.03


@pytest.mark.parametrize("run", PUBLISHED[2:5], ids=lambda run: run.model)
def test_16_bits_take_longer_and_less_than_twice_as_long(run: Published):
    assert 1.2 < predicted_s(run, "bf16") / predicted_s(run) < 2
