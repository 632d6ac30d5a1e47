"""ZeRO-1 and 2 after the optimizer: what each rank has updated becomes whole on every rank again.

    at once      [optimizer][gather .. gather][forward of block 0][block 1] ..
    beside       [optimizer][forward of block 0][block 1] ..
                            [gather 0][gather 1] ..            a block waits for its own

At once, a step ends with the new parameters everywhere. Beside the next forward they are complete
when that comes to them; whoever else wants to read them then waits first (`settle`).

Source: Rajbhandari et al. 2020, ZeRO, section 5.1; DeepSpeed and Megatron-LM call it overlapping
the parameter gather.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ..messages.carriers import gather_single
from ..tensor.shards import local
from .buckets import Bucket
from .chunks import from_rank_major, padded_chunk


class Gathers:
    """The gathers of a model's buckets over `group`.

    Args:
        buckets: in the order of the backward.
    """

    def __init__(self, model: nn.Module, buckets: list[Bucket], group: ProcessGroup) -> None:
        self.buckets, self.group = buckets, group
        self.under_way: dict[int, Callable[[], None]] = {}
        bucket_of = {id(p): bucket.index for bucket in buckets for p in bucket.parameters}
        blocks = [block for stage in model.stages for block in stage.blocks.values()]
        of_blocks = [_places(block.parameters(), bucket_of) for block in blocks]
        others = set(bucket_of) - {id(p) for block in blocks for p in block.parameters()}
        # what is in no block, as the embedding, is wanted first, and by whoever wants it
        first = sorted({bucket_of[p] for p in others})  # in one order on every rank
        model.register_forward_pre_hook(partial(self._arrive, first))
        for block, places in zip(blocks, of_blocks, strict=True):
            block.register_forward_pre_hook(partial(self._arrive, places))

    @torch.no_grad()
    def begin(self, owned: Mapping[str, Tensor], beside: bool) -> None:
        """Gather what `owned` has of every parameter, by name. Nothing may be under way still."""
        for bucket in reversed(self.buckets):
            chunks = [owned[name] for name in bucket.names]
            whole = [local(parameter) for parameter in bucket.parameters]
            self.under_way[bucket.index] = begin_gather(chunks, whole, self.group)
            if not beside:
                self.settle()

    def settle(self) -> None:
        """Wait for all that is under way."""
        self._arrive(list(self.under_way))

    @torch.no_grad()
    def _arrive(self, places: Iterable[int], *_: Any) -> None:
        for place in places:
            if place in self.under_way:
                self.under_way.pop(place)()


def _places(parameters: Iterable[Tensor], bucket_of: dict[int, int]) -> list[int]:
    return sorted({bucket_of[id(p)] for p in parameters if id(p) in bucket_of})


def begin_gather(
    chunks: list[Tensor], targets: list[Tensor], group: ProcessGroup
) -> Callable[[], None]:
    """Begin to make whole tensors of the chunk that each rank of the group holds of each; what is
    returned waits for them."""
    n = group.size()
    sizes = [padded_chunk(tensor, n) for tensor in targets]
    to_its_place = len(targets) == 1 and targets[0].numel() == n * sizes[0]
    if to_its_place:  # without a message between
        own, message = chunks[0].to(targets[0].dtype).flatten(), targets[0].view(-1)
    else:
        own = targets[0].new_zeros(sum(sizes))
        for chunk, place in zip(chunks, own.split(sizes), strict=True):
            place[: chunk.numel()] = chunk.flatten()
        message = own.new_empty(n * own.numel())
    work = gather_single(message, own, group=group, async_op=True)

    def arrived() -> None:
        work.wait()
        if not to_its_place:
            from_rank_major(message, targets, n)

    return arrived
