"""What torch's DDP communication hooks are given: they compress what ranks send of a bucket.

On gloo powerSGD hangs where there are several buckets, here as under torch's own DDP.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..tensor.shards import local

if TYPE_CHECKING:
    from .buckets import Bucket


class GradBucket:
    """A bucket as torch's hooks know one: all that torch.distributed.GradBucket answers."""

    def __init__(self, bucket: "Bucket") -> None:
        self._bucket = bucket

    def index(self) -> int:
        return self._bucket.index

    def buffer(self) -> Tensor:
        return self._bucket.flat

    def set_buffer(self, buffer: Tensor) -> None:
        self._bucket.flat = buffer

    def gradients(self) -> list[Tensor]:
        """Of each parameter, in its shape: views of the buffer."""
        return self._bucket.parts(self._bucket.flat)

    def parameters(self) -> list[Tensor]:
        return list(map(local, self._bucket.parameters))

    def is_last(self) -> bool:
        return self._bucket.last


Hook = Callable[[object, GradBucket], "torch.futures.Future[Tensor]"]
