"""A step on a device whose tensors meet none of the CPU's: what mixes them fails, as on a GPU, and
the host waits for the device once."""

from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
import torch

from helpers.engine import trainer
from helpers.engine.models import document_mask
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import DryRun, dry_run
from tests.support import tiny

PIPELINE = {"pp": 2, "microbatches": 4}
PACKED = {"packed": True}
LAYOUTS = {
    "one process": {},
    "bf16": {"precision": "bf16"},
    "fp16, micro-batches": {"precision": "fp16", "microbatches": 2},
    "tp": {"tp": 2},
    "tp=4": {"tp": 4, "precision": "bf16"},
    "sequence parallel": {"tp": 2, "sequence_parallel": True},
    "DDP": {"dp_replicate": 2, "precision": "bf16", "reduce_dtype": "bf16"},
    "ZeRO-1": {"dp_shard": 2, "zero_stage": 1, "precision": "bf16"},
    "ZeRO-2": {"dp_shard": 2, "zero_stage": 2, "microbatches": 2},
    "ZeRO-3": {"dp_shard": 2},
    "ZeRO-3, bf16": {"dp_shard": 2, "precision": "bf16", "microbatches": 2},
    "HSDP": {"dp_replicate": 2, "dp_shard": 2, "precision": "bf16"},
    "HSDP, ZeRO-1": {"dp_replicate": 2, "dp_shard": 2, "zero_stage": 1},
    "HSDP, sequence parallel": {
        "dp_replicate": 2,
        "dp_shard": 2,
        "tp": 2,
        "sequence_parallel": True,
    },
    "naive": PIPELINE | {"schedule": "naive"},
    "gpipe": PIPELINE | {"schedule": "gpipe", "precision": "fp16"},
    "1f1b": PIPELINE,
    "interleaved": PIPELINE | {"schedule": "interleaved", "virtual_stages": 2},
    "zero-bubble": PIPELINE | {"schedule": "zero-bubble", "precision": "bf16"},
    "V": PIPELINE | {"schedule": "zero-bubble-v"},
    "1f1b, tp, ZeRO-3": PIPELINE | {"tp": 2, "sequence_parallel": True, "dp_shard": 2},
    "zero-bubble, HSDP": PIPELINE
    | {"schedule": "zero-bubble", "dp_replicate": 2, "dp_shard": 2, "precision": "bf16"},
    "full": {"activation": "full"},
    "groups, ZeRO-3": {"activation": "group_2", "dp_shard": 2},
    "selective": {"activation": "selective", "precision": "bf16"},
    "offload": {"offload": True},
    "offload, full, 1f1b": PIPELINE | {"offload": True, "activation": "full"},
    "packed": PACKED,
    "packed, tp": PACKED | {"tp": 2, "sequence_parallel": True, "precision": "bf16"},
    "packed, 1f1b, ZeRO-3": PACKED | PIPELINE | {"dp_shard": 2},
}
FAMILIES = (*tiny.FAMILIES, *tiny.PUBLISHED)


def covering() -> list:
    """Each layout with the family whose turn it is; the other pairs with --exhaustive."""
    return [
        pytest.param(
            family,
            layout,
            id=f"{family}-{layout}",
            marks=() if place == number % len(FAMILIES) else (pytest.mark.exhaustive,),
        )
        for number, layout in enumerate(LAYOUTS)
        for place, family in enumerate(FAMILIES)
    ]


def runs(family: str, layout: str) -> list[DryRun]:
    """On the last rank, and where there are stages on the first."""
    fields = LAYOUTS[layout]
    packed = fields.get("packed", False)
    plan = ParallelPlan(**{name: fields[name] for name in fields if name != "packed"})
    config = tiny.config(family, layers=4 if plan.pp > 1 else 2)
    return [
        dry_run(config, plan, rank, batch=8, seq_len=16, device="meta", packed=packed)
        for rank in sorted({0 if plan.pp > 1 else plan.world_size - 1, plan.world_size - 1})
    ]


@pytest.mark.parametrize(("family", "layout"), covering())
def test_no_tensor_meets_one_of_the_cpu(family: str, layout: str) -> None:
    if family == "falcon-alibi" and LAYOUTS[layout].get("packed"):
        pytest.skip("ALiBi takes no mask of documents")
    for run in runs(family, layout):
        assert run.host_waits == 1  # for the loss and the norm together
        assert run.flops > 0


def test_what_meets_one_fails() -> None:
    def mask(documents: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(documents), 1, 16, 16, dtype=torch.bool)  # of the CPU

    with patch.object(document_mask, "attention_mask", mask), pytest.raises(RuntimeError):
        runs("gptj", "packed")


def test_what_the_host_waits_for_is_counted() -> None:
    """Where the labels are, asked of the device, in each of two micro-batches. Positions in host
    memory, with which each of two layers asks for its rows of a table of the device."""
    placed = trainer.Trainer._placed
    with patch.object(trainer.Trainer, "_placed", lambda *x: placed(*x)._replace(places=None)):
        [run] = runs("gptj", "fp16, micro-batches")
    assert run.host_waits == 1 + 2
    with patch.object(document_mask, "positions", lambda documents: torch.arange(16).expand(8, 16)):
        [run] = runs("gptj", "packed")
    assert run.host_waits == 1 + 2


def test_offloading_leaves_the_device_three_blocks() -> None:
    def peak(layers: int, **fields: bool) -> int:
        config = tiny.config("gpt2", layers=layers)
        plan = ParallelPlan(**fields)
        run = dry_run(config, plan, batch=64, seq_len=64, device="meta")
        return run.largest["activations"]

    assert peak(12, offload=True) < 1.2 * peak(6, offload=True)
    assert peak(12) > 1.8 * peak(6)
    assert peak(12, offload=True) < 0.5 * peak(12)
