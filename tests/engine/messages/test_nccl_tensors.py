"""What goes to the backend is what NCCL takes: contiguous tensors of its types. gloo takes others.

NCCL refuses the rest in the first step on GPUs ("Tensors must be contiguous", "Unsupported data
type for NCCL process group"). Here boards and mailboxes are shut, as between GPUs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from helpers.engine.messages import carriers
from helpers.engine.parallelize import parallelize
from helpers.engine.pipeline import messages
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

# torch's getNcclDataType
TYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
CALLS = {
    carriers: ("_gather_by_backend", "_scatter_by_backend", "gather_single", "scatter_single"),
    dist: ("all_reduce", "all_to_all_single", "broadcast", "send", "recv", "isend", "irecv"),
}
PLANS = {
    "tp": ParallelPlan(tp=2),
    "tp-sp-bf16": ParallelPlan(tp=2, sequence_parallel=True, precision="bf16"),
    "tp-fp8": ParallelPlan(tp=2, precision="fp8"),
    "ring": ParallelPlan(cp=2),
    "gather": ParallelPlan(cp=2, cp_attention="gather"),
    "ulysses-tp": ParallelPlan(tp=2, cp=2, cp_attention="ulysses"),
    "zero1-bf16": ParallelPlan(dp_shard=2, zero_stage=1, precision="bf16"),
    "zero3": ParallelPlan(dp_shard=2),
    "hsdp": ParallelPlan(dp_replicate=2, dp_shard=2),
    "zero-bubble": ParallelPlan(pp=2, schedule="zero-bubble", microbatches=4),
    "interleaved-zero2": ParallelPlan(
        pp=2, schedule="interleaved", virtual_stages=2, microbatches=2, dp_shard=2, zero_stage=2
    ),
}


@contextmanager
def watched() -> Iterator[list[str]]:
    """What NCCL would have refused."""
    refused: list[str] = []
    plain = {(module, name): getattr(module, name) for module in CALLS for name in CALLS[module]}
    shut = {
        (carriers, "board_of"): lambda _: None,
        (carriers, "mailbox"): lambda *_: None,
        (messages, "open_mailboxes"): lambda _: None,
    }
    opened = {(module, name): getattr(module, name) for module, name in shut}

    def watching(name: str, call):
        def watch(*given, **named):
            for x in (*given, *named.values()):
                if isinstance(x, Tensor) and not (x.is_contiguous() and x.dtype in TYPES):
                    refused.append(f"{name} {x.dtype} {list(x.shape)} {x.stride()}")
            return call(*given, **named)

        return watch

    replaced = shut | {key: watching(key[1], call) for key, call in plain.items()}
    for (module, name), call in replaced.items():
        setattr(module, name, call)
    try:
        yield refused
    finally:
        for (module, name), call in (plain | opened).items():
            setattr(module, name, call)


def refused_of(family: str, plan: ParallelPlan) -> list[str]:
    ids, labels = tiny.batch(0)
    with watched() as refused:
        model = parallelize(tiny.fresh(family, torch.float32, 4), plan, mesh_of(plan))
        trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
        trainer.step(ids, labels)
        trainer.evaluate([(ids, labels)])
    return refused


@pytest.mark.parametrize("name", PLANS)
def test_a_step_sends_what_nccl_takes(name: str) -> None:
    family = ("gptj", "llama", "neox")[list(PLANS).index(name) % 3]
    for refused in pool(PLANS[name].world_size).run(refused_of, family, PLANS[name]):
        assert refused == []


def refused_of_bad_ones() -> list[str]:
    with watched() as refused:
        dist.all_reduce(torch.ones(2, 3))
        for bad in (torch.ones(2, 3).t(), torch.ones(2, dtype=torch.int16)):
            with pytest.raises((ValueError, RuntimeError)):
                carriers.gather_single(torch.ones(1), bad)
    return [text.partition(" [")[0] for text in refused]


def test_the_watch_sees_what_nccl_would_refuse() -> None:
    expected = ["gather_single torch.float32", "gather_single torch.int16"]
    assert pool(2).run(refused_of_bad_ones) == [expected, expected]
