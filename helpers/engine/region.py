"""The tensor-parallel region: how work enters it, leaves it, and draws random numbers in it.

    tensor parallel      enter: copy (f)         leave: all-reduce (g)
    + sequence parallel  enter: all-gather       leave: reduce-scatter      outside: seq/tp a rank

Sources: Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, section 4.2.2.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from helpers.engine import collectives

SEQUENCE_DIM = 1  # of [batch, seq, hidden]


@dataclass(frozen=True)
class Region:
    """The stretch of a layer in which the ranks of one axis hold different parts of the work."""

    mesh: DeviceMesh
    sequence_parallel: bool = False

    @property
    def group(self) -> ProcessGroup:
        return self.mesh.get_group()

    @property
    def size(self) -> int:
        return self.mesh.size()

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank()

    def begin(self, x: Tensor) -> Tensor:
        """Before the first block: [batch, seq, hidden], of which a rank keeps its sequence part."""
        if self.size == 1 or not self.sequence_parallel:
            return x
        if x.shape[SEQUENCE_DIM] % self.size:
            raise ValueError(
                f"sequence parallelism needs a length that tp={self.size} divides, "
                f"not {x.shape[SEQUENCE_DIM]}"
            )
        return collectives.split(x, SEQUENCE_DIM, self.group)

    def enter(self, x: Tensor) -> Tensor:
        """From what lies outside to the whole sequence, of which each rank does a part."""
        if self.size == 1:
            return x
        if self.sequence_parallel:
            return collectives.gather(x, SEQUENCE_DIM, self.group)
        return collectives.copy_in(x, self.group)

    def leave(self, partial: Tensor) -> Tensor:
        """From the ranks' partial sums to their sum outside."""
        if self.size == 1:
            return partial
        if self.sequence_parallel:
            return collectives.scatter(partial, SEQUENCE_DIM, self.group)
        return collectives.reduce_out(partial, self.group)

    def heads(self, x: Tensor) -> Tensor:
        """This rank's heads of [batch, heads, ..]."""
        return x.chunk(self.size, dim=1)[self.rank]

    def dropout(self, x: Tensor, p: float, training: bool) -> Tensor:
        """Dropout outside the region: one mask for all ranks, or each its own where they hold
        different parts of the sequence."""
        with self.own_stream(self.sequence_parallel and training and p > 0):
            return F.dropout(x, p, training)

    @contextmanager
    def own_stream(self, wanted: bool) -> Iterator[None]:
        """Random numbers that differ between the ranks of the region.

        All ranks draw one seed from the stream that they share and each adds its number to it. The
        shared stream thus stays in step, and recomputation, which rewinds it, draws the same again.
        """
        if not wanted or self.size == 1:
            yield
            return
        seed = int(torch.randint(2**62, ())) + self.rank
        devices = [torch.cuda.current_device()] if self.mesh.device_type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield


def on_input(function: Callable[[Tensor], Tensor]) -> Callable:
    """A hook for a module's forward: its first input, by position or name, goes through
    `function`."""

    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (function(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": function(kwargs["hidden_states"])}

    return hook
