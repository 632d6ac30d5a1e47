"""Messages inside a compiled graph: an operation that the compiler leaves as it is.

The compiler cannot look into what talks to other ranks, and would cut a block into a graph before
and a graph after each message, and compile what lies around it too. As an operation of torch's own
kind, with sizes and no insight, a message stands in the middle of the block's one graph.

Source: torch.library's custom operators.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

Message = TypeVar("Message", bound=Callable[..., Tensor])
NAMESPACE = __name__.split(".")[0]  # of whoever has copied the engine


def in_one_graph(sized: Callable[..., Tensor]) -> Callable[[Message], Message]:
    """For a function of a tensor, perhaps a dim, and last a group: the same, and while blocks are
    compiled an operation.

    Args:
        sized: what it gives without values, of the same arguments with the group's size in its
            place.
    """

    def made(message: Message) -> Message:
        dims = ", int dim" * (len(inspect.signature(message).parameters) - 2)
        operation = torch.library.custom_op(
            f"{NAMESPACE}::{message.__name__}",
            lambda *given: message(*given[:-1], _resolve_process_group(given[-1])),
            mutates_args=(),
            schema=f"(Tensor x{dims}, str group) -> Tensor",
        )
        operation.register_fake(
            lambda *given: sized(*given[:-1], _resolve_process_group(given[-1]).size())
        )

        @functools.wraps(message)
        def sent(*given: object) -> Tensor:
            if torch.compiler.is_compiling():
                return operation(*given[:-1], given[-1].group_name)
            return message(*given)

        return sent

    return made


def resized(x: Tensor, dim: int, size: int) -> list[int]:
    """The shape of `x` with another size along a dim."""
    return [size if place == dim % x.dim() else length for place, length in enumerate(x.shape)]
