"""Offloading over streams that copy as late as they may: nothing is read before it has arrived, and
no memory is given back that a copy still needs."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.engine.memory import offloading
from helpers.engine.memory.offloading import HORIZON, Offloader, Saved
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

LAYERS = 8


class LateStream:
    """Its copies run when the stream that computes waits for an event behind them."""

    def __init__(self) -> None:
        self.queue: list[tuple[weakref.ref, weakref.ref, bool]] = []
        self.done = 0
        self.waited = False

    def wait_stream(self, other: "LateStream") -> None:
        self.waited = True  # what computes has computed

    def record_event(self) -> int:
        return len(self.queue)

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert self.waited, "a copy began beside what computes its tensor, or had its memory"
        self.waited = False
        inwards = torch._C._current_graph_task_id() != -1  # in a backward
        self.queue.append((weakref.ref(target), weakref.ref(source), inwards))
        target.detach().fill_(float("nan") if target.is_floating_point() else 10**6)

    def run_until(self, event: int) -> None:
        for target, source, inwards in self.queue[self.done : event]:
            to, of = target(), source()
            given_back = (inwards and to is None) or (to is not None and of is None)
            assert not given_back, "memory was given back before its copy was complete"
            if to is not None:
                to.detach().copy_(of)
        self.done = max(self.done, event)


class Captured(TorchDispatchMode):
    def __init__(self, stream: LateStream) -> None:
        super().__init__()
        self.stream = stream

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        with torch.utils._python_dispatch._disable_current_modes():
            self.stream.copy(*args[:2])
        return args[0]


@contextmanager
def late_streams() -> Iterator[list[LateStream]]:
    made: list[LateStream] = []

    def make() -> LateStream:
        made.append(LateStream())
        return made[-1]

    computing = SimpleNamespace(wait_event=lambda event: made[0].run_until(event))
    streams = SimpleNamespace(Stream=make, stream=Captured, current_stream=lambda: computing)
    with patch.object(offloading, "_streams", lambda device: streams):
        yield made


def losses(offload: bool, fault: str = "") -> list[float]:
    plan = ParallelPlan(offload=offload, microbatches=2)
    model = parallelize(tiny.fresh("gpt2", torch.float64, LAYERS), plan, mesh_of(plan), check=False)
    trainer = Trainer(model, plan, mesh_of(plan), lr=tiny.LR)
    faults = {
        "reads too early": ("_wait", lambda self, saved: self.fetched.discard(saved)),
        "gives back too early": ("_hold_back", give_back_at_once),
    }
    with late_streams() as made:
        with patch.object(Offloader, *faults.get(fault, ("_wait", Offloader._wait))):
            found = [trainer.step(*tiny.batch(step)).loss for step in range(3)]
        if offload:
            brought = sum(inwards for _, _, inwards in made[0].queue)
            assert brought >= 3 * 2 * (LAYERS - HORIZON)  # the last blocks' had not left yet
    return found


def give_back_at_once(self: Offloader) -> None:
    for saved in getattr(self.newest(), "saved", ()):
        saved.source = None


def test_late_copies_change_no_number() -> None:
    [late] = pool(1).run(losses, True)
    [plain] = pool(1).run(losses, False)
    assert late == plain


@pytest.mark.parametrize("fault", ["reads too early", "gives back too early"])
def test_a_missing_wait_is_seen(fault: str) -> None:
    with pytest.raises(AssertionError, match="before its copy was complete"):
        pool(1).run(losses, True, fault)


def held_after_a_forward() -> tuple[int, int]:
    """Tensors that a forward has saved, and those of them that the device still holds."""
    made: list[Saved] = []
    send = Offloader._send
    plan = ParallelPlan(offload=True)
    model = parallelize(tiny.fresh("gpt2", torch.float32, LAYERS), plan, mesh_of(plan)).train()
    ids, labels = tiny.batch(0)

    def noted(self: Offloader, tensor: Tensor) -> Saved:
        made.append(send(self, tensor))
        return made[-1]

    with patch.object(Offloader, "_send", noted):
        out = model(input_ids=ids, labels=labels)
    held = sum(saved.source is not None for saved in made)
    out.loss.backward()
    return len(made), held


def test_a_forward_leaves_the_last_blocks_on_the_device() -> None:
    [(saved, held)] = pool(1).run(held_after_a_forward)
    assert held * LAYERS == saved * HORIZON


class Gram(nn.Module):
    """Saves a square matrix and its transpose: of one storage, and of one shape."""

    def forward(self, hidden: Tensor) -> Tensor:
        scaled = hidden * 1.5
        return scaled @ scaled.t()


def test_a_matrix_is_not_taken_for_its_transpose() -> None:
    hidden = torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(64.0 * 64, dtype=torch.float64).view(64, 64)
    block, found = Gram(), []
    for forward in (block.forward, Offloader().wrap(block, block.forward)):
        given = hidden.clone().requires_grad_()
        (forward(given) * weights).sum().backward()
        found.append(given.grad)
    assert torch.equal(*found)
