"""A workshop's helpers: train, run, look, plan. Each name is imported when it is first used.

The names below are those of every day. The rooms have faces of their own for the rest:
`helpers.engine` (schedules, stages, adapters), `helpers.text` (text to batches), `helpers.trace`
(where time went), `helpers.planner` (formulas, machines, published runs) and `helpers.lab`
(figures, drawings, comparisons, cluster jobs). `helpers.train` is what torchrun starts.
"""

from typing import TYPE_CHECKING

from helpers.engine import lazy

if TYPE_CHECKING:
    from helpers.engine.adapters.qlora import Adapting, load_adapted
    from helpers.engine.errors import UserError
    from helpers.engine.files.weights import save_model
    from helpers.engine.models.configurations import load_config
    from helpers.engine.parallelize import load_model, parallelize
    from helpers.engine.plan import ParallelPlan
    from helpers.engine.ranks import distributed
    from helpers.engine.trainer import Trainer
    from helpers.lab.doctor import doctor
    from helpers.lab.exercises.check import check
    from helpers.lab.exercises.solutions import show_solution
    from helpers.lab.figures.display import show_figure, show_table
    from helpers.lab.launch.launch import launch
    from helpers.lab.launch.warm.ranks import Ranks
    from helpers.lab.notebook.predictions import Predictions
    from helpers.lab.notebook.preflight import preflight
    from helpers.lab.notebook.record import save_record
    from helpers.lab.notebook.results import Results
    from helpers.lab.notebook.source_code import show_source
    from helpers.lab.paths import unused
    from helpers.lab.runs.failure_report import RunFailed
    from helpers.lab.runs.run import load_run
    from helpers.planner.dry_run.dry_run import dry_run
    from helpers.planner.hardware.cluster import make_cluster
    from helpers.planner.search.estimate import estimate
    from helpers.planner.search.explain import explain
    from helpers.planner.search.search import search_plans

HOMES = {
    # train
    "ParallelPlan": "engine.plan",
    "distributed": "engine.ranks",
    "parallelize": "engine.parallelize",
    "load_config": "engine.models.configurations",
    "load_model": "engine.parallelize",
    "save_model": "engine.files.weights",
    "Adapting": "engine.adapters.qlora",
    "load_adapted": "engine.adapters.qlora",
    "Trainer": "engine.trainer",
    "UserError": "engine.errors",
    # run
    "launch": "lab.launch.launch",
    "Ranks": "lab.launch.warm.ranks",
    "load_run": "lab.runs.run",
    "RunFailed": "lab.runs.failure_report",
    "unused": "lab.paths",
    "doctor": "lab.doctor",
    # a notebook
    "preflight": "lab.notebook.preflight",
    "Predictions": "lab.notebook.predictions",
    "Results": "lab.notebook.results",
    "save_record": "lab.notebook.record",
    "show_source": "lab.notebook.source_code",
    "show_figure": "lab.figures.display",
    "show_table": "lab.figures.display",
    "check": "lab.exercises.check",
    "show_solution": "lab.exercises.solutions",
    # plan
    "make_cluster": "planner.hardware.cluster",
    "estimate": "planner.search.estimate",
    "search_plans": "planner.search.search",
    "explain": "planner.search.explain",
    "dry_run": "planner.dry_run.dry_run",
}
__all__ = list(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES, __all__)
