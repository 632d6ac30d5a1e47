"""What the reader's code sends, watched while it sends: the functions of torch.distributed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)


class NotHere(Exception):
    """A function that the exercise is about to be written without."""


@dataclass
class Sent:
    """Bytes by receiver, in the order of the messages."""

    messages: list[tuple[int, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.messages)

    @property
    def peers(self) -> set[int]:
        return {peer for peer, _ in self.messages}

    def off_ring(self, rank: int, ranks: int) -> str:
        """What is wrong where messages went beyond one of the two neighbours in a ring."""
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        if not (self.peers - {right} and self.peers - {left}):
            return ""
        others = ", ".join(map(str, sorted(self.peers)))
        return f"messages went to ranks {others}; a ring sends to one neighbour, rank {right}"


@contextmanager
def only_sends(besides: Sequence[str] = ()) -> Iterator[Sent]:
    """Count what goes by send and receive, and refuse every collective.

    Args:
        besides: collectives that may be called; what they send is not counted.
    """
    sent = Sent()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def send(tensor: Tensor, dst: int | None = None, *rest: Any, **named: Any) -> Any:
            sent.messages.append((dst, tensor.nbytes))
            return real(tensor, dst, *rest, **named)

        return send

    def batch(real: Callable[..., Any]) -> Callable[..., Any]:
        def several(operations: list[dist.P2POp]) -> Any:
            for operation in operations:
                if operation.op in senders:
                    sent.messages.append((operation.peer, operation.tensor.nbytes))
            return real(operations)

        return several

    def refused(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> None:
            words = " or ".join(["send and receive", *besides[-1:]])
            raise NotHere(f"dist.{name} does the whole; write it with {words}")

        return refuse

    senders = (dist.isend, dist.send)
    with ExitStack() as stack:
        for name in sorted(set(COLLECTIVES) - set(besides)):
            stack.enter_context(patch.object(dist, name, refused(name)))
        several = batch(dist.batch_isend_irecv)
        stack.enter_context(patch.object(dist, "batch_isend_irecv", several))
        for name in ("send", "isend"):
            stack.enter_context(patch.object(dist, name, counted(getattr(dist, name))))
        yield sent


class Later:
    """A sum under way. It is made when it is waited for, so that whoever does not wait is seen."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self.waited = make, False

    def wait(self, *_: Any) -> bool:
        if not self.waited:
            self.waited = True
            self._make()
        return True


@contextmanager
def sums_that_wait(on_sum: Callable[[], None]) -> Iterator[list[Later]]:
    """Asynchronous all-reduces happen in their `wait`; they are the list that is yielded.

    Args:
        on_sum: called when any all-reduce is started.
    """
    real, under_way = dist.all_reduce, []

    def all_reduce(tensor: Tensor, *rest: Any, async_op: bool = False, **named: Any) -> Any:
        on_sum()
        if not async_op:
            return real(tensor, *rest, **named)
        under_way.append(Later(lambda: real(tensor, *rest, **named)))
        return under_way[-1]

    with patch.object(dist, "all_reduce", all_reduce):
        yield under_way
