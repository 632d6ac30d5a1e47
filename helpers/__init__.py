"""The names that a notebook needs. Each is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helpers.engine.adapters.qlora import Adapting, load_adapted
    from helpers.engine.files.weights import load_model, save_model
    from helpers.engine.parallelize import parallelize
    from helpers.engine.plan import ParallelPlan
    from helpers.engine.ranks import distributed
    from helpers.engine.trainer import Trainer
    from helpers.lab.doctor import doctor
    from helpers.lab.exercises.check import check
    from helpers.lab.figures.training_plots import show_figure, show_table
    from helpers.lab.launch.launch import launch
    from helpers.lab.notebook.preflight import preflight
    from helpers.lab.runs.run import load_run
    from helpers.planner.dry_run.dry_run import dry_run
    from helpers.planner.search.estimate import estimate
    from helpers.planner.search.search import search_plans

_HOMES = {
    "ParallelPlan": "engine.plan",
    "distributed": "engine.plan",
    "parallelize": "engine.parallelize",
    "load_model": "engine.weights",
    "save_model": "engine.weights",
    "Adapting": "engine.qlora",
    "load_adapted": "engine.qlora",
    "Trainer": "engine.trainer",
    "launch": "lab.launch",
    "load_run": "lab.runs",
    "preflight": "lab.profiles",
    "doctor": "lab.doctor",
    "check": "lab.exercises",
    "show_figure": "lab.figures",
    "show_table": "lab.figures",
    "estimate": "planner.estimate",
    "search_plans": "planner.search",
    "dry_run": "planner.dry_run",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"helpers has no {name!r}; it has: {', '.join(_HOMES)}")
    return getattr(import_module(f"helpers.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
