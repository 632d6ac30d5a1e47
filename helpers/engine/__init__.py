"""The parallelism engine on transformers' own models. It imports nothing else of `helpers`.

Read plan.py first (degrees and switches as one frozen value) with placement.py (which rank stands
where), then parallelize.py, the one page that shows the order in which a model is laid out, then
trainer.py, one step over a global batch.
A room for each idea, from the ground up: models, messages, context, pipeline, tensor, experts,
memory, admission, data_parallel, precision, files, adapters; ranks is how processes meet, agree,
wait and leave.

    from . import ParallelPlan, Trainer, distributed, load_model

The names below are the engine's face: copy the folder under any name, and import them from there.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

HOMES = {
    "ParallelPlan": "plan",
    "distributed": "ranks",
    "run_and_leave": "ranks",
    "parallelize": "parallelize",
    "Trainer": "trainer",
    "UserError": "errors",
    "load_config": "models.configurations",
    "load_model": "parallelize",
    "save_model": "files.weights",
    "Checkpoints": "files.checkpoints",
    "Adapting": "adapters.qlora",
    "load_adapted": "adapters.qlora",
    "load_quantized": "adapters.nf4",
    "add_adapters": "adapters.lora",
    "save_adapters": "adapters.lora",
    "save_merged": "adapters.merging",
    "trainable_parameters": "adapters.lora",
    "shares_of_work": "context.balance",
    "make_schedule": "pipeline.schedules",
    "predicted_bubble": "pipeline.schedules",
    "Times": "pipeline.simulator",
    "simulate": "pipeline.simulator",
    "measured_times": "pipeline.simulator",
    "check_schedule": "pipeline.simulator",
    "balance": "pipeline.partition",
    "model_costs": "pipeline.partition",
    "stage_costs": "pipeline.partition",
    "SPEED": "pipeline.partition",
    "MEMORY": "pipeline.partition",
    "auto_partition": "pipeline.stages",
}
__all__ = list(HOMES)


def lazy(package: str, homes: dict[str, str], names: list[str]) -> tuple[Callable, Callable]:
    """Of a face, `__getattr__` (imports a name from its home when first asked) and `__dir__`."""

    def named(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"{package} has no {name!r}; it has: {', '.join(homes)}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return named, lambda: names


__getattr__, __dir__ = lazy(__name__, HOMES, __all__)


class Face(ModuleType):
    """A package in which a file does not hide the name of the face that it is called after."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in HOMES and isinstance(value, ModuleType):
            return  # the import of parallelize.py would put the file in the function's place
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = Face
