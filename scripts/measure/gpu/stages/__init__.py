"""The stages of acceptance.py by name, in their order: each a function of a Report.

machine.py looks at the device and its kernels, layouts.py compares numbers, speed.py times steps,
step_parts.py takes them apart, runs.py trains by the command line.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple


class Stage(NamedTuple):
    """A function of a module here, and the ranks that it wants."""

    module: str
    function: str
    ranks: int = 1

    @property
    def run(self) -> Callable[[Any], None]:
        return getattr(import_module(f"stages.{self.module}"), self.function)


STAGES = {
    "machine": Stage("machine", "machine"),
    "layouts": Stage("layouts", "one_rank"),
    "two-ranks": Stage("layouts", "two_ranks", ranks=2),
    "train": Stage("runs", "train"),
    "calibrate": Stage("speed", "calibrated"),
    "speed": Stage("speed", "large_model"),
    "parts": Stage("step_parts", "parts"),
    "compile": Stage("speed", "compiled"),
    "qlora": Stage("speed", "adapters"),
    "profile": Stage("runs", "profile"),
    "notebook": Stage("runs", "notebook"),
}
