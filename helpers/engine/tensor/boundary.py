"""The boundary of what tp splits: how work crosses into a split layer and out of it.

    tensor parallel      enter: copy (f)         leave: all-reduce (g)
    + sequence parallel  enter: all-gather       leave: reduce-scatter      outside: seq/tp a rank

Inside, the ranks of the axis hold different parts of one layer's work; outside, all hold the same
hidden states, or under sequence parallelism each a part of the sequence.

Sources: Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, section 4.2.2.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ..context.attention import Context
from ..context.parts import Part
from ..errors import UserError
from ..models.documents import Document, by_documents
from . import collectives
from .shards import local


@dataclass(eq=False)
class Boundary:
    """Around the part of a layer whose matrices the ranks of `mesh`, one axis, share.

    mesh: None where there is one rank.
    sequence_parallel: is the sequence split outside?
    context: the ranks over which it is split inside attention too; None where there are none.
    documents: of the packed rows under way, which attention takes one by one; None where rows are
        not packed, or a mask says which tokens see each other.
    experts: the ranks that deal experts out, as one axis, and tp; None where none do.
    """

    mesh: DeviceMesh | None = None
    sequence_parallel: bool = False
    context: Context | None = None
    documents: list[list[Document]] | None = None
    experts: DeviceMesh | None = None

    @property
    def group(self) -> ProcessGroup | None:
        return self.mesh.get_group() if self.mesh else None

    @property
    def size(self) -> int:
        return self.mesh.size() if self.mesh else 1

    @property
    def rank(self) -> int:
        return self.mesh.get_local_rank() if self.mesh else 0

    @contextmanager
    def working_on(
        self, part: Part | None, documents: list[list[Document]] | None
    ) -> Iterator[None]:
        """For so long attention is over the whole of the rows of which the rank has this part, or
        inside these documents."""
        before, self.documents = self.documents, documents
        try:
            with nullcontext() if self.context is None else self.context.working_on(part):
                yield
        finally:
            self.documents = before

    def by_documents(self, attend: Any, q: Tensor, k: Tensor, v: Tensor, *how: Any) -> Tensor:
        """Attention inside the documents under way, see models/documents.py."""
        return by_documents(attend, q, k, v, self.documents, *how)

    def stay_out_of_graphs(self) -> None:
        """Let compiled blocks call attention over ranks or documents, and not compile it: where
        these end is another in every row, and a graph would be, too."""
        self.by_documents = torch.compiler.disable(self.by_documents)
        if self.context is not None:
            self.context.stay_out_of_graphs()

    @contextmanager
    def whole_sequence(self) -> Iterator[None]:
        """For so long the sequence is not split: for any length, where nothing is trained."""
        split, self.sequence_parallel = self.sequence_parallel, False
        try:
            yield
        finally:
            self.sequence_parallel = split

    def begin(self, x: Tensor) -> Tensor:
        """Before the first block: [batch, seq, hidden], of which a rank keeps its sequence part."""
        if self.size == 1 or not self.sequence_parallel:
            return x
        length = x.shape[_sequence_dim(x)]
        if length % self.size:
            raise UserError(
                f"sequence parallelism needs a length that tp={self.size} divides, not {length}: "
                "pad the rows, as a Trainer's step does"
            )
        return collectives.split(x, _sequence_dim(x), self.group)

    def enter(self, x: Tensor) -> Tensor:
        """From outside to the whole sequence inside, of which each rank does a part of the work."""
        if self.size == 1:
            return x
        if self.sequence_parallel:
            return collectives.gather(x, _sequence_dim(x), self.group)
        return collectives.copy_in(x, self.group)

    def leave(self, partial: Tensor) -> Tensor:
        """From the ranks' partial sums inside to their sum outside."""
        if self.size == 1:
            return partial
        if self.sequence_parallel:
            return collectives.scatter(partial, _sequence_dim(partial), self.group)
        return collectives.reduce_out(partial, self.group)

    def end(self, x: Tensor) -> Tensor:
        """After the last block: the whole sequence, with which every rank does the same work."""
        if self.size == 1 or not self.sequence_parallel:
            return x
        return collectives.collect(x, _sequence_dim(x), self.group)

    def part_of(self, parameter: Tensor | None) -> Tensor | None:
        """This rank's part of a parameter, split or not."""
        return local(parameter)

    def heads(self, x: Tensor) -> Tensor:
        """This rank's heads of [batch, heads, ..]."""
        return x.chunk(self.size, dim=1)[self.rank]

    def dropout(self, x: Tensor, p: float, training: bool) -> Tensor:
        """Dropout outside: one mask for all ranks, or each its own where they hold different parts
        of the sequence."""
        with self.own_stream(self.sequence_parallel and training and p > 0):
            return F.dropout(x, p, training)

    @contextmanager
    def own_stream(self, wanted: bool) -> Iterator[None]:
        """Random numbers that differ between the ranks.

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


def _sequence_dim(x: Tensor) -> int:
    """1 of [batch, seq, hidden], 0 of [tokens, hidden], whose order is no matter inside."""
    return x.dim() - 2
