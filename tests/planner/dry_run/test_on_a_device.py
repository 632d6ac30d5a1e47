"""A step on a device whose tensors meet none of the CPU's: what mixes them fails, as on a GPU, and
the host waits for the device once."""

from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
import torch
from transformers.models.gptj import modeling_gptj

from helpers.engine import trainer
from helpers.engine.models import documents
from helpers.engine.models.architecture import family_of
from helpers.engine.models.objectives import CAUSAL, build
from helpers.engine.pipeline import micro_batches
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import DryRun, dry_run, without_values
from tests.support import tiny

PIPELINE = {"pp": 2, "microbatches": 4}
PACKED = {"packed": True}
KINDS = ("ring", "gathered", "ulysses")  # of context parallelism
LAYOUTS = {
    "one process": {},
    "fp16, micro-batches": {"precision": "fp16", "microbatches": 2},
    "sequence parallel": {"tp": 2, "sequence_parallel": True},
    "DDP": {"dp_replicate": 2, "precision": "bf16", "reduce_dtype": "bf16"},
    "ZeRO-1": {"dp_shard": 2, "zero_stage": 1, "precision": "bf16"},
    "ZeRO-2": {"dp_shard": 2, "zero_stage": 2, "microbatches": 2},
    "ZeRO-3": {"dp_shard": 2, "precision": "bf16"},
    "HSDP": {"dp_replicate": 2, "dp_shard": 2, "precision": "bf16"},
    "1f1b": PIPELINE,
    "interleaved": PIPELINE | {"schedule": "interleaved", "virtual_stages": 2},
    "zero-bubble": PIPELINE | {"schedule": "zero-bubble", "precision": "bf16"},
    "1f1b, tp, ZeRO-3": PIPELINE | {"tp": 2, "sequence_parallel": True, "dp_shard": 2},
    "groups, ZeRO-3": {"activation": "group_2", "dp_shard": 2},
    "selective": {"activation": "selective", "precision": "bf16"},
    "packed": PACKED,
    "packed, 1f1b, ZeRO-3": PACKED | PIPELINE | {"dp_shard": 2},
    "offload": {"offload": True},
    "ring": {"cp": 2, "tp": 2, "precision": "bf16"},
    "gathered": {"cp": 2, "cp_attention": "gather", "activation": "full"},
    "ulysses": {"cp": 2, "cp_attention": "ulysses", "dp_shard": 2},
}
MORE_LAYOUTS = {
    "bf16": {"precision": "bf16"},
    "tp": {"tp": 2},
    "tp=4": {"tp": 4, "precision": "bf16"},
    "HSDP, ZeRO-1": {"dp_replicate": 2, "dp_shard": 2, "zero_stage": 1},
    "HSDP, tp": {"dp_replicate": 2, "dp_shard": 2, "tp": 2},
    "naive": PIPELINE | {"schedule": "naive"},
    "gpipe": PIPELINE | {"schedule": "gpipe", "precision": "fp16"},
    "V": PIPELINE | {"schedule": "zero-bubble-v"},
    "zero-bubble, HSDP": PIPELINE
    | {"schedule": "zero-bubble", "dp_replicate": 2, "dp_shard": 2, "precision": "bf16"},
    "full": {"activation": "full"},
    "offload, full, 1f1b": PIPELINE | {"offload": True, "activation": "full"},
    "packed, tp": PACKED | {"tp": 2, "sequence_parallel": True, "precision": "bf16"},
}
FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED)


def covering() -> list:
    """Each layout with the family whose turn it is; all else with --exhaustive."""
    return [
        pytest.param(
            family,
            layout,
            id=f"{family}-{layout}",
            marks=()
            if layout in LAYOUTS and place == number % len(FAMILIES)
            else (pytest.mark.exhaustive,),
        )
        for number, layout in enumerate(LAYOUTS | MORE_LAYOUTS)
        for place, family in enumerate(FAMILIES)
    ]


def runs(family: str, layout: str) -> list[DryRun]:
    """On the last rank, and where there are stages on the first."""
    fields = (LAYOUTS | MORE_LAYOUTS)[layout]
    packed = fields.get("packed", False)
    plan = ParallelPlan(**{name: fields[name] for name in fields if name != "packed"})
    config = tiny.config(family, layers=4 if plan.pp > 1 else 2)
    return [
        dry_run(config, plan, rank, batch=8, seq_len=16, device="meta", packed=packed)
        for rank in sorted({0 if plan.pp > 1 else plan.world_size - 1, plan.world_size - 1})
    ]


@pytest.mark.parametrize(("family", "layout"), covering())
def test_no_tensor_meets_one_of_the_cpu(family: str, layout: str) -> None:
    for run in runs(family, layout):
        assert run.host_waits == 1  # for the loss and the norm together
        assert run.flops > 0


def test_the_norm_of_a_rank_without_anything_to_train_is_on_the_device() -> None:
    """As of a pipeline's first stage where the lower blocks are frozen. A fake group sends, and
    fake tensors stack, what is on two devices."""
    plan, ids = ParallelPlan(pp=2, microbatches=4), torch.zeros((8, 16), dtype=torch.long)
    with torch.device("meta"):
        model = build(tiny.config("llama", layers=4), CAUSAL.task, torch.float32)
    model.model.requires_grad_(False)
    devices, norm_of = [], trainer.gradient_norm

    def seen(*given: object) -> torch.Tensor:
        norm = norm_of(*given)
        devices.append(norm.device.type)
        return norm

    with (
        patch.object(trainer, "largest_over_ranks", lambda number: 1),  # the last rank's is 1
        patch.object(trainer, "gradient_norm", seen),
        without_values(model, family_of(model), plan, 0, "meta") as (made, _),
    ):
        made.step(ids, ids)
        assert not made.parts and devices == ["meta"]


def test_what_meets_one_fails() -> None:
    def mask(query: torch.Tensor, *rest: object) -> torch.Tensor:
        return torch.zeros(1, 1, query.shape[2], query.shape[2])  # of the CPU

    with patch.object(documents, "_mask", mask), pytest.raises(RuntimeError):
        runs("falcon-alibi", "packed")


def test_what_the_host_waits_for_is_counted() -> None:
    """Where the labels are, asked of the device, in each of two micro-batches. Positions in host
    memory, with which each of two layers asks for its rows of a table of the device; since
    transformers 5.24 the model does, once for all."""
    with patch.object(trainer, "placed", lambda batch, objective: batch):
        [run] = runs("gptj", "fp16, micro-batches")
    assert run.host_waits == 1 + 2
    places = patch.object(micro_batches, "positions", lambda _: torch.arange(16).expand(8, 16))
    with places, patch.object(micro_batches, "LONG_ROW", 0):
        [run] = runs("gptj", "packed")
    assert run.host_waits == 1 + (1 if hasattr(modeling_gptj, "GPTJRotaryEmbedding") else 2)


@pytest.mark.parametrize("layout", ["one process", "sequence parallel", *KINDS])
def test_a_device_keeps_no_scores(layout: str) -> None:
    """So it holds what a CPU does, whose kernels keep none, either."""
    config = tiny.config("llama")
    config.max_position_embeddings = 2048
    config.vocab_size = 96  # in eights on two ranks, too, as a device has its logits
    plan = ParallelPlan(**LAYOUTS[layout] | {"precision": "bf16"})
    cpu, own = (dry_run(config, plan, batch=2, seq_len=2048, device=d) for d in ("cpu", "meta"))
    assert own.peak_bytes == pytest.approx(cpu.peak_bytes, rel=0.02)
    assert own.flops == pytest.approx(cpu.flops, rel=0.02)


def test_a_device_drops_in_its_kernels() -> None:
    """A CPU's attention with dropout keeps the scores: of 8 heads and 512 tokens, 16 MiB a row."""
    config = tiny.config("gpt2")
    config.n_positions, config.attn_pdrop, config.resid_pdrop = 512, 0.1, 0.1
    plan = ParallelPlan(precision="bf16")
    cpu, own = (dry_run(config, plan, batch=8, seq_len=512, device=d) for d in ("cpu", "meta"))
    assert own.peak_bytes < 0.5 * cpu.peak_bytes


def test_offloading_leaves_the_device_three_blocks() -> None:
    def peak(layers: int, **fields: bool) -> int:
        config = tiny.config("gpt2", layers=layers)
        plan = ParallelPlan(**fields)
        run = dry_run(config, plan, batch=64, seq_len=64, device="meta")
        return run.largest["activations"]

    assert peak(12, offload=True) < 1.2 * peak(6, offload=True)
    assert peak(12) > 1.8 * peak(6)
    assert peak(12, offload=True) < 0.5 * peak(12)
