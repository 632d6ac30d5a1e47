"""Keep what the backward pass needs in host memory, and bring it back a few blocks ahead.

    forward    block i computes | its saved tensors copy out beside block i+1, i+2
    backward   block i computes | those of block i-1, i-2 copy in beside it

Copies have a stream of their own. Memory of the device belongs to the stream that computes: it is
given back once that stream has waited for the copy, so a host that runs far ahead of its GPU holds
no more than these few blocks. On a CPU, whose streams wait for nothing, the same code runs and
saves nothing.

Source: Ren et al. 2021, ZeRO-Offload, section 4 (host memory, overlapped copies).
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor.shards import local
from .changed_in_place import refuse_changed

SMALLEST_BYTES = 4096  # below this a copy costs more than it frees
HORIZON = 2  # blocks whose tensors are on their way while one computes


@dataclass(eq=False)
class Saved:
    """One tensor of the forward pass.

    source: on the device, until its copy is out.
    version: torch's count of its changes in place when it was saved.
    host: its copy; None of what stays on the device.
    here: back on the device, complete after the event `is_here`.
    changed: was it changed in place while its copy went out?
    """

    source: Tensor | None
    version: int
    host: Tensor | None
    device: torch.device
    here: Tensor | None = None
    is_here: Any = None
    changed: bool = False

    def see_changes(self) -> None:
        if self.source is not None:
            self.changed = self.source._version != self.version


@dataclass(eq=False)
class Tape:
    """What one block of one forward pass saved, the tape of the block before, and the event after
    its last copy."""

    before: Callable[[], "Tape | None"]
    saved: list[Saved] = field(default_factory=list)
    seen: dict[Any, Saved] = field(default_factory=dict)
    is_out: Any = None


class Offloader:
    """Wraps the forwards of a model's blocks."""

    def __init__(self) -> None:
        self.newest: Callable[[], Tape | None] = lambda: None
        self.fetched: set[Saved] = set()  # for which nobody has waited yet
        self.stream: Any = None  # made for the first tensor

    def wrap(self, block: nn.Module, forward: Callable) -> Callable:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not (block.training and torch.is_grad_enabled()):
                return forward(*args, **kwargs)
            self._hold_back()
            tape = Tape(before=self.newest)
            self.newest = weakref.ref(tape)
            weights = {local(p).untyped_storage()._cdata for p in block.parameters()}
            hooks = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._pack(tape, weights, tensor), self._unpack
            )
            with hooks:
                out = forward(*args, **kwargs)
            tape.seen.clear()
            if tape.saved:
                tape.is_out = self.stream.record_event()
            return out

        return run

    def _hold_back(self) -> None:
        """Before a block: wait for copies that began long ago, and give back what they held."""
        tape = self.newest()
        for _ in range(HORIZON - 1):
            tape = tape and tape.before()
        if tape and tape.saved and tape.saved[0].source is not None:
            _streams(tape.saved[0].device).current_stream().wait_event(tape.is_out)
            for saved in tape.saved:
                saved.see_changes()
                saved.source = None
        for saved in [*self.fetched]:  # a graph that was left before its end
            self._wait(saved)

    def _pack(self, tape: Tape, weights: set[int], tensor: Tensor) -> tuple[Tape | None, Saved]:
        """Send a tensor out; weights stay, and what several operations save goes once."""
        storage = tensor.untyped_storage()._cdata
        if storage in weights or tensor.nbytes < SMALLEST_BYTES or isinstance(tensor, nn.Parameter):
            return None, Saved(tensor, tensor._version, None, tensor.device, here=tensor)
        place = (storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        key = (*place, tensor.dtype, tensor._version)
        if key not in tape.seen:
            tape.seen[key] = self._send(tensor.detach())
            tape.saved.append(tape.seen[key])
        return tape, tape.seen[key]

    def _send(self, tensor: Tensor) -> Saved:
        streams = _streams(tensor.device)
        self.stream = self.stream or streams.Stream()
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self.stream.wait_stream(streams.current_stream())
        with streams.stream(self.stream):
            host.copy_(tensor, non_blocking=True)
        return Saved(tensor, tensor._version, host, tensor.device)

    def _unpack(self, packed: tuple[Tape | None, Saved]) -> Tensor:
        ahead, saved = packed
        saved.see_changes()
        if saved.changed:
            refuse_changed()
        for _ in range(HORIZON + 1):
            for one in ahead.saved if ahead else ():
                self._fetch(one)
            ahead = ahead and ahead.before()
        self._wait(saved)
        return saved.here

    def _fetch(self, saved: Saved) -> None:
        """Start to bring it back, once; what has not been given back yet is here."""
        if saved.here is not None:
            return
        if saved.source is not None:
            saved.here = saved.source
            return
        streams = _streams(saved.device)
        saved.here = torch.empty_like(saved.host, device=saved.device)
        self.stream.wait_stream(streams.current_stream())  # to which its memory belonged
        with streams.stream(self.stream):
            saved.here.copy_(saved.host, non_blocking=True)
        saved.is_here = self.stream.record_event()
        self.fetched.add(saved)

    def _wait(self, saved: Saved) -> None:
        if saved in self.fetched:
            _streams(saved.device).current_stream().wait_event(saved.is_here)
            self.fetched.discard(saved)


def _streams(device: torch.device) -> Any:
    """torch's module of that kind of device, with its streams."""
    return torch.get_device_module(device)
