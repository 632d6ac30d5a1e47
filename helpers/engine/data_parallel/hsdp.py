"""HSDP's second sum: gradients that a group of shards has summed, over the groups.

The links between the groups are the slow ones, so this sum runs once a step, of all micro-batches,
and unit by unit beside the backward of the blocks before. (fully_shard over a mesh of two dims and
its set_requires_all_reduce would wait for each sum on a CPU, and keep to themselves what schedules
with postponed weight gradients have still to add.)

Source: Zhang et al. 2022, MiCS, section 3.4 (2-hop gradient synchronisation).
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..messages.carriers import all_reduce
from ..tensor.shards import local


class ReplicaSums:
    """Sums what fully_shard's units have reduced over `group`, from inside their backward.

    Args:
        units: modules that fully_shard wrapped together over dp_shard alone, inner ones first.
        group: of the ranks that hold the same shard.
        each_time: sum in every micro-batch and wait for it: for gradients that are kept in another
            dtype than the one they are summed in.
        left_out: parameters that fully_shard does not know.
    """

    def __init__(
        self,
        units: Iterable[Sequence[nn.Module]],
        group: dist.ProcessGroup,
        each_time: bool,
        left_out: Iterable[Tensor] = (),
    ) -> None:
        self.group, self.each_time = group, each_time
        self.complete = True
        self.started: dict[int, dist.Work] = {}
        self.parameters: list[Tensor] = []
        seen = set(map(id, left_out))
        for unit in units:
            own = [p for module in unit for p in module.parameters() if id(p) not in seen]
            seen |= {id(p) for p in own}
            own = [p for p in own if p.requires_grad]
            self.parameters += own
            unit[0].set_all_reduce_hook(partial(self._reduced, own))

    def _reduced(self, parameters: list[Tensor], summed: Tensor) -> None:
        """A unit's gradients, flat, as they come out of the sum over the shards; fully_shard adds
        views of them to the parameters' gradients, or makes them those."""
        if self.each_time:
            all_reduce(summed, self.group)
        elif self.complete and self._take_earlier(parameters, summed):
            self._start(summed)

    def _take_earlier(self, parameters: list[Tensor], summed: Tensor) -> bool:
        """Move what earlier micro-batches left in the parameters' gradients into `summed`. False
        where that is not of the same parameters: then `end` sums it."""
        earlier = _flat_gradients(parameters)
        if not earlier:
            return True
        all_there = all(p.grad is not None for p in parameters)
        if len(earlier) > 1 or not all_there or earlier[0].numel() != summed.numel():
            return False
        summed += earlier[0]
        if summed.is_cuda:  # its memory must not be given away before this addition has run
            earlier[0].record_stream(torch.cuda.current_stream())
        for parameter in parameters:
            parameter.grad = None
        return True

    def _start(self, gradients: Tensor) -> None:
        work = all_reduce(gradients, self.group, async_op=True)
        self.started[_storage_of(gradients)] = work

    def end(self) -> None:
        """After a backward: once the step's gradients are complete, sum what is not on its way, and
        wait for all."""
        if self.each_time or not self.complete:
            return
        for gradients in _flat_gradients(self.parameters):
            if _storage_of(gradients) not in self.started:
                self._start(gradients)
        for work in self.started.values():
            work.wait()
        self.started.clear()


def _storage_of(tensor: Tensor) -> int:
    """What all views of the same memory have alike, those without values too."""
    return tensor.untyped_storage()._cdata


def _flat_gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The flat tensors that the parameters' gradients are views of, each once."""
    by_storage: dict[int, Tensor] = {}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        gradient = local(parameter.grad)
        if _storage_of(gradient) not in by_storage:
            flat = torch.empty(0, dtype=gradient.dtype, device=gradient.device)
            by_storage[_storage_of(gradient)] = flat.set_(gradient.untyped_storage())
    return list(by_storage.values())
