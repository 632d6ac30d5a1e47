"""Blocks compiled one by one, and what compiling took.

The blocks of a model are the same code on other weights, so one compiled graph serves them all and
compiling takes as long for four layers as for forty. Messages between ranks stand in the middle of
a block's one graph, see tensor/compiled_messages.py.

Only training is compiled: evaluation runs the blocks as they are. Dropout draws the same numbers as
without compiling, so a compiled run can be held against one that is not.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import UserError
from ..memory.recomputing import blocks_to_wrap, in_training
from ..models.families import Family

OPTIONS = {"fallback_random": True}  # torch's own random numbers, not those of the compiler
KEPT = 10_000  # graphs that torch keeps count of; it forgets all but the last 64 by itself


def check_compiler() -> None:
    """Raise a UserError if there is no C++ compiler, which torch.compile needs on every machine."""
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError):
        install = "xcode-select --install" if sys.platform == "darwin" else "apt install g++"
        raise UserError(
            f"compile needs a C++ compiler, and none was found: install one ({install}), or set "
            "CXX to its path"
        ) from None


def apply_compile(model: nn.Module, family: Family) -> None:
    """Compile the forward of every block that this rank has; names and modules stay.

    Raises:
        UserError: the model has no list of blocks.
    """
    from torch._dynamo.utils import set_compilation_metrics_limit

    set_compilation_metrics_limit(KEPT)
    for block in blocks_to_wrap(model, family, "compile"):
        compiled: Callable = torch.compile(block.forward, options=OPTIONS)
        block.forward = in_training(block, compiled, block.forward)


@dataclass(frozen=True)
class Compilation:
    """One graph that was compiled. `reason` is empty the first time; later it is the guard that
    the call did not meet."""

    name: str
    seconds: float
    reason: str


def compilations() -> list[Compilation]:
    """All of this process so far, in order."""
    from torch._dynamo.utils import get_compilation_metrics

    return [
        Compilation(
            name=metrics.co_name or "backward",
            seconds=(metrics.duration_us or 0) / 1e6,
            reason=(metrics.recompile_reason or "").strip(),
        )
        for metrics in get_compilation_metrics()
    ]


def compile_s() -> float:
    """Seconds that this process has spent on compiling."""
    return sum(compilation.seconds for compilation in compilations())
