"""Numbers on the device against one process that runs transformers' own class there."""

import os
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from report import CUDA, DEVICE, Report
from torch import Tensor

ALONE = {
    "plain": {},
    "full": {"activation": "full"},
    "selective": {"activation": "selective"},
    "groups": {"activation": "group_2"},
    "offload": {"offload": True},
    "micro-batches": {"microbatches": 2},
    "compiled": {"compile": True},
}
PIPELINE = {"pp": 2, "microbatches": 4}
TOGETHER = {
    "tp": {"tp": 2},
    "sequence parallel": {"tp": 2, "sequence_parallel": True},
    "DDP": {"dp_replicate": 2},
    "ZeRO-1": {"dp_shard": 2, "zero_stage": 1},
    "ZeRO-2": {"dp_shard": 2, "zero_stage": 2, "microbatches": 2},
    "ZeRO-3": {"dp_shard": 2},
    "1f1b": PIPELINE,
    "zero-bubble": PIPELINE | {"schedule": "zero-bubble"},
    "interleaved": PIPELINE | {"schedule": "interleaved", "virtual_stages": 2},
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}
LAYERS, FEW_LAYERS = 8, 4


def one_rank(report: Report) -> None:
    from helpers.engine.plan import ParallelPlan
    from helpers.engine.ranks import distributed
    from tests.support import tiny

    every = [*tiny.FAMILIES, *tiny.PUBLISHED, *tiny.DECODERS]
    every.remove("opt")  # a key's bias moves no softmax: its gradient is rounding alone
    families = every[:1] if report.tiny else every
    with distributed(ParallelPlan(), DEVICE) as mesh:
        for family in families:
            for dtype in TOLERANCE:
                compare(report, f"{family}, {dtype}", family, dtype, {}, mesh)
            for precision in ("bf16", "fp16", "fp8"):
                trains(report, family, precision, mesh)
        for name, fields in ALONE.items():
            if name != "compiled" or not report.tiny:
                compare(report, f"gptj, {name}", "gptj", torch.float32, fields, mesh)


def two_ranks(report: Report) -> None:
    """Two ranks of one device: their messages go through host memory, for gloo sends no tensors of
    a GPU and NCCL takes one rank a GPU."""
    report.first = os.environ["RANK"] == "0"
    through_host_memory()  # before the engine takes its own names of these calls
    from helpers.engine.plan import ParallelPlan

    if CUDA:
        torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    for family in ("gptj",) if report.tiny else ("gptj", "falcon-mqa", "llama"):
        for name, fields in TOGETHER.items():
            mesh = ParallelPlan(**fields).mesh(DEVICE.type)
            compare(report, f"two ranks, {family}, {name}", family, torch.float32, fields, mesh)
    dist.barrier()


def compare(
    report: Report, name: str, family: str, dtype: torch.dtype, fields: dict[str, Any], mesh: Any
) -> None:
    """The loss and every gradient of a plan; the largest difference is over the largest number."""
    from helpers.engine.parallelize import parallelize
    from helpers.engine.plan import ParallelPlan
    from helpers.engine.trainer import Trainer
    from tests.support import parity, tiny

    with report.attempt(name):
        ids, labels = tiny.batch(0, length=16)
        layers = FEW_LAYERS if report.tiny else LAYERS
        plain = tiny.reference(family, dtype, layers=layers).to(DEVICE)
        loss = tiny.plain_loss(plain, ids.to(DEVICE), labels.to(DEVICE))
        loss.backward()
        expected = {name: p.grad for name, p in plain.named_parameters()}
        plan = ParallelPlan(**fields)
        model = parallelize(tiny.fresh(family, dtype, layers).to(DEVICE), plan, mesh)
        trainer = Trainer(model, plan, mesh, lr=1e-3)
        off = {"the loss": off_by(trainer.backward(ids, labels), loss)}
        gradients = trainer.gradients()
        for part in trainer.parts:
            found = parity.whole(part.whole(gradients[part.name]))
            off[part.name] = off_by(found.reshape(expected[part.name].shape), expected[part.name])
        trainer.step(ids, labels)  # and the rest of a step runs
        worst = max(off, key=off.get)
        report.check(name, off[worst] <= TOLERANCE[dtype], f"{off[worst]:.1e} in {worst}")


def off_by(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def trains(report: Report, family: str, precision: str, mesh: Any) -> None:
    """Five steps of transformers' own class: those of the tests have norms that are exact in
    float64, and overflow in fp16."""
    from helpers.engine.parallelize import parallelize
    from helpers.engine.plan import ParallelPlan
    from helpers.engine.trainer import Trainer
    from tests.support import tiny

    with report.attempt(f"{family}, {precision}"):
        plan = ParallelPlan(precision=precision)
        plain = tiny.reference(family, torch.float32)
        expected = tiny.plain_loss(plain, *tiny.batch(0)).item()
        own = tiny.auto_class(family).from_config(tiny.config(family), dtype=torch.float32)
        own.load_state_dict(plain.state_dict())
        trainer = Trainer(parallelize(own.to(DEVICE), plan, mesh), plan, mesh, lr=1e-3)
        results = [trainer.step(*tiny.batch(step)) for step in range(5)]
        off = abs(results[0].loss - expected) / expected
        skipped = sum(one.skipped for one in results)
        found = f"loss off by {off:.1e}, {skipped} of 5 steps skipped"
        report.check(f"{family}, {precision}", off < 0.02 and skipped < 5, found)


# by which a DTensor is made whole, past CALLS, in torch 2.11 and later
GATHERS = ("all_gather_tensor", "all_gather_single")
CALLS = {  # which of the tensors that are given a call writes
    "all_reduce": [0],
    "broadcast": [0],
    "all_gather_into_tensor": [0],
    "all_gather_single": [0],
    "reduce_scatter_tensor": [0],
    "reduce_scatter_single": [0],
    "send": [],
    "recv": [0],
    "isend": [],
    "irecv": [0],
}


class Later(dist.Work):
    """A message under way, and what to do when it is there."""

    def __init__(self, work: dist.Work | None, done: Any) -> None:
        super().__init__()
        self.work, self.done = work, done

    def wait(self, *_: Any) -> bool:
        if self.done is not None:
            if self.work is not None:
                self.work.wait()
            self.done()
            self.done = None
        return True

    def is_completed(self) -> bool:
        return self.done is None


def through_host_memory() -> None:
    for name, written in CALLS.items():
        if hasattr(dist, name):
            patch.object(dist, name, staged(getattr(dist, name), name, written)).start()
    for name in GATHERS:
        if hasattr(functional, name):
            plain = getattr(functional, name)
            patch.object(functional, name, partial(gathered, plain)).start()


def gathered(plain: Any, x: Tensor, *given: Any, **more: Any) -> Tensor:
    """gloo takes a GPU's address for one of host memory, and ends the process."""
    if not x.is_cuda:
        return plain(x, *given, **more)
    return functional.wait_tensor(plain(x.cpu(), *given, **more)).to(x.device)


def staged(plain: Any, name: str, written: list[int]) -> Any:
    def call(*given: Any, **more: Any) -> Any:
        if not any(isinstance(one, Tensor) and one.is_cuda for one in given):
            return plain(*given, **more)
        host = [one.detach().cpu() if isinstance(one, Tensor) else one for one in given]
        later = name in ("isend", "irecv") or more.get("async_op", False)
        work = plain(*host, **more)

        def back() -> None:
            for place in written:
                given[place].detach().copy_(host[place])

        if later:
            return Later(work, back)
        back()
        return None

    return call
