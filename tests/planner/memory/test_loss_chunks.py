"""Chunks of the loss: one is alive at a time, and the formulas take those of the device."""

from dataclasses import replace
from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
import torch

from helpers.engine.models import chunked_loss
from helpers.engine.models.chunked_loss import CHUNK_BYTES, GPU_CHUNK_BYTES
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import dry_run
from helpers.planner.dry_run.tensor_watch import Watch
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.memory.peak import rank_memory
from helpers.planner.model.training_job import make_job
from helpers.planner.search.estimate import planned_job
from helpers.planner.search.request import Question, job_under
from helpers.planner.time.tensor_messages import tensor_messages
from tests.support import tiny

GPUS = make_cluster("p4d.24xlarge")
CORES = replace(GPUS, device="cpu")


def config():
    made = tiny.config("llama", layers=1)
    made.max_position_embeddings, made.vocab_size = 128, 2**15
    return made


def test_one_chunk_is_alive_at_a_time():
    """Its logits become their gradient, and the next chunk's take its place."""
    tokens, vocabulary, width = 64, 512, 4
    hidden = torch.randn(4 * tokens, width, requires_grad=True)
    weight = torch.randn(vocabulary, width, requires_grad=True)
    labels = torch.zeros(4 * tokens, dtype=torch.long)
    one = 4 * tokens * vocabulary
    with patch.object(chunked_loss, "CHUNK_BYTES", one), Watch() as watch:
        chunked_loss.token_loss(hidden, weight, None, labels, 0, vocabulary, None)
    assert one < sum(watch.peak()[0].values()) < 1.5 * one


@pytest.mark.parametrize(
    ("device", "dry_device", "chunks"), [("cpu", "cpu", 8), ("cuda", "meta", 2)]
)
def test_the_formulas_take_the_devices(device, dry_device, chunks):
    """Of 512 MiB of logits; those of a GPU are larger."""
    job = make_job(config(), ParallelPlan(), 64, 64 + 1, device=device)
    with patch.object(chunked_loss, "_chunk_loss", wraps=chunked_loss._chunk_loss) as made:
        dry = dry_run(config(), ParallelPlan(), batch=64, seq_len=64 + 1, device=dry_device)
    assert made.call_count == chunks
    assert rank_memory(job, 0).allocated == pytest.approx(dry.peak_bytes, rel=0.05)


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}])
def test_one_stage_makes_the_heads_gradient_in_its_forward(layout):
    """Whatever schedule is asked for: without a pipeline 1F1B runs."""
    jobs = [
        make_job(config(), ParallelPlan(schedule=name, microbatches=2, **layout), 16, 64)
        for name in ("1f1b", "gpipe")
    ]
    dry = dry_run(config(), jobs[1].plan, batch=16, seq_len=64)
    plain, asked = (rank_memory(job, 0).allocated for job in jobs)
    assert asked == plain == pytest.approx(dry.peak_bytes, rel=0.03)
    plain, asked = (tensor_messages(job, 0) for job in jobs)
    assert asked == plain


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_accelerator_has_columns_in_eights(precision):
    """One token id more, and the head stands twice in the loss."""
    wide, plan = tiny.config("gpt2", layers=1), ParallelPlan(precision=precision)
    wide.n_embd, peaks = 512, {}
    for vocabulary in (2**15, 2**15 + 1):
        wide.vocab_size = vocabulary
        job = make_job(wide, plan, 16, 64, device="cuda")
        dry = dry_run(wide, plan, batch=16, seq_len=64, device="meta")
        peaks[vocabulary] = rank_memory(job, 0).allocated, dry.peak_bytes
    head = job.element_bytes * 512 * 2**15
    for one, other in zip(*peaks.values(), strict=True):
        assert other - one == pytest.approx(head, rel=0.1)


def test_a_question_is_about_its_clusters_device():
    plan = ParallelPlan(dp_shard=8, precision="bf16")
    for cluster, chunk in ((GPUS, GPU_CHUNK_BYTES), (CORES, CHUNK_BYTES)):
        asked = planned_job(config(), plan, cluster, 8 * 64, 64 + 1)
        question = Question(asked.shape, (cluster,), 8 * 64, 64 + 1, "bf16", "time", None, None)
        assert asked.logits_bytes == job_under(question, plan, cluster).logits_bytes == chunk
