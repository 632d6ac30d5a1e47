"""What the reader's code sends, watched while it sends: the functions of torch.distributed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch import Tensor

COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",  # from torch 2.13 on, as reduce_scatter_single
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
ALL_TO_ALL = ("all_to_all", "all_to_all_single")


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
def only_sends(or_all_to_all: bool = False) -> Iterator[Sent]:
    """Count what goes by send and receive, or by an all-to-all where that is allowed, and refuse
    every other collective."""
    sent = Sent()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def send(tensor: Tensor, dst: int | None = None, *rest: Any, **named: Any) -> Any:
            sent.messages.append((dst, tensor.nbytes))
            return real(tensor, dst, *rest, **named)

        return send

    def one_of_several(real: type[dist.P2POp], isend: Callable[..., Any]) -> Callable[..., Any]:
        def operation(op: Callable[..., Any], *rest: Any, **named: Any) -> dist.P2POp:
            if op is not dist.isend:
                return real(op, *rest, **named)
            made = real(isend, *rest, **named)  # it takes torch's own function alone
            sent.messages.append((made.peer, made.tensor.nbytes))
            return made

        return operation

    def to_all(real: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(*args: Any, **named: Any) -> Any:
            given = signature(real).bind(*args, **named).arguments
            for peer, piece in enumerate(_pieces(given)):
                if peer != dist.get_rank():
                    sent.messages.append((peer, piece.nbytes))
            return real(*args, **named)

        return exchange

    def refused(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> None:
            ways = "send and receive" + (" or all_to_all_single" if or_all_to_all else "")
            raise NotHere(f"dist.{name} does the whole; write it with {ways}")

        return refuse

    instead = {name: refused(name) for name in {*COLLECTIVES, *ALL_TO_ALL} & {*dir(dist)}}
    if or_all_to_all:
        instead |= {name: to_all(getattr(dist, name)) for name in ALL_TO_ALL}
    instead |= {name: counted(getattr(dist, name)) for name in ("send", "isend")}
    instead["P2POp"] = one_of_several(dist.P2POp, dist.isend)
    with patch.multiple(dist, **instead):
        yield sent


def _pieces(given: dict[str, Any]) -> Sequence[Tensor]:
    """By receiver, what an all-to-all with these arguments sends."""
    if "input_tensor_list" in given:
        return given["input_tensor_list"]
    x = given["input"]
    return x.split(given.get("input_split_sizes") or -(-len(x) // dist.get_world_size()))


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
