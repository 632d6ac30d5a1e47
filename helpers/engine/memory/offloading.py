"""Keep what the backward pass needs in host memory, and bring it back a few blocks ahead.

    forward    block i computes | its saved tensors copy out on a side stream
    backward   block i computes | those of block i-1 .. i-horizon copy in on a side stream

On the CPU the same hooks run and copy to other memory, so that the results can be held against a
run without them; they save nothing there.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor.shards import local

SMALLEST_BYTES = 4096  # below this a copy costs more than it frees


@dataclass(eq=False)
class Saved:
    """One tensor of the forward pass, away from the device."""

    source: Tensor | None  # kept until the copy is done
    host: Tensor
    device: torch.device
    arrived: Tensor | None = None
    is_here: torch.cuda.Event | None = None  # of a GPU's copy, which goes on while others compute

    def fetch(self) -> None:
        """Start to bring it back, once."""
        if self.arrived is not None:
            return
        self.arrived = self.host.to(self.device, non_blocking=True, copy=True)
        if self.arrived.is_cuda:
            self.is_here = torch.cuda.current_stream().record_event()


@dataclass(eq=False)
class Tape:
    """What one block of one forward pass saved, and the tape of the block before."""

    before: Callable[[], "Tape | None"]
    saved: list[Saved] = field(default_factory=list)
    seen: dict[Any, Saved] = field(default_factory=dict)


class Offloader:
    """Wraps the forwards of a model's blocks.

    Args:
        horizon: blocks whose tensors are on their way back while one block's backward runs.
    """

    def __init__(self, horizon: int = 2) -> None:
        self.horizon = horizon
        self.newest: Callable[[], Tape | None] = lambda: None
        self.stream: torch.cuda.Stream | None = None  # made for the first tensor of a GPU

    def wrap(self, block: nn.Module, forward: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not (block.training and torch.is_grad_enabled()):
                return forward(*args, **kwargs)
            tape = Tape(before=self.newest)
            self.newest = weakref.ref(tape)
            weights = {local(p).untyped_storage().data_ptr() for p in block.parameters()}
            hooks = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._pack(tape, weights, tensor), self._unpack
            )
            with hooks:
                out = forward(*args, **kwargs)
            self._release(tape)
            return out

        return run

    def _pack(self, tape: Tape, weights: set[int], tensor: Tensor) -> Any:
        """Send a tensor out; weights stay, and what several operations save goes once."""
        size = tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage().data_ptr()
        if storage in weights or size < SMALLEST_BYTES or isinstance(tensor, nn.Parameter):
            return tensor
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)
        if key not in tape.seen:
            tape.seen[key] = self._send(tensor)
            tape.saved.append(tape.seen[key])
        return tape, tape.seen[key]

    def _send(self, tensor: Tensor) -> Saved:
        if not tensor.is_cuda:
            return Saved(tensor, tensor.detach().clone(), tensor.device)
        self.stream = self.stream or torch.cuda.Stream(tensor.device)
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)
        return Saved(tensor, host, tensor.device)

    def _release(self, tape: Tape) -> None:
        """The block is done: let go of the device's copies. The allocator waits for the stream."""
        tape.seen.clear()
        for saved in tape.saved:
            saved.source = None

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        tape, saved = packed
        if saved.device.type != "cuda":
            saved.fetch()
            return saved.arrived
        with torch.cuda.stream(self.stream):
            self._fetch_ahead(tape)
        # for this one alone, and not for the blocks that are fetched ahead
        torch.cuda.current_stream().wait_event(saved.is_here)
        saved.arrived.record_stream(torch.cuda.current_stream())
        return saved.arrived

    def _fetch_ahead(self, tape: Tape) -> None:
        ahead: Tape | None = tape
        for _ in range(self.horizon + 1):
            if ahead is None:
                return
            for saved in ahead.saved:
                saved.fetch()
            ahead = ahead.before()
