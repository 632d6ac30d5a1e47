"""An estimator that names a recipe: the recipe's run, on the machines of the estimator.

The recipe says the model, the batch, the plan and the task. So without its file there is no run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.smp.jobs.distributions import Layout
from helpers.smp.jobs.estimators import Estimator
from helpers.smp.jobs.job import Job, job_of
from helpers.smp.jobs.lines import Line
from helpers.smp.reading.values import unknown_in
from helpers.smp.recipes.recipe import Recipe, read_recipe

NAME = re.compile(r"[\w./-]{1,200}")  # of a recipe: a path, often without its ending
YAML = (".yaml", ".yml")


@dataclass
class Launched:
    """A job with the recipe that it names: `path` is its file, None where there is none."""

    job: Job
    path: Path | None = None
    lines: list[Line] = field(default_factory=list)


def names_recipe(job: Estimator) -> bool:
    return job.get("training_recipe") is not None


def launched(
    job: Estimator, beside: Path, given: Sequence[Path], answers: Mapping[str, Any]
) -> Launched:
    """The run of an estimator that names a recipe.

    Args:
        beside: the file that has the estimator; a recipe may stand in its folder.
        given: the other files.
    """
    found, name = job_of(job, None, answers), job.get("training_recipe")
    over = job.get("recipe_overrides")
    if not isinstance(name, str) or not isinstance(over, (dict, type(None))):
        missing = unknown_in(name) or unknown_in(over) or "training_recipe"
        return _without(found, Layout(asked=(str(missing),)))
    path = _file_of(name, beside, given)
    if path is None:
        words = f"its model, batch and plan are in the recipe {name:.100}, which is not among the "
        return _without(found, Layout(refused=f"{words}files: give its .yaml, too"))
    try:
        paths = dict(_paths(over or {}))
        recipe = read_recipe(path, _answers(job, found, answers), paths, job.place)
    except UserError as error:
        return replace(_without(found, Layout(refused=str(error))), path=path)
    _take(found, recipe)
    return Launched(found, path, recipe.lines)


def _without(found: Job, layout: Layout) -> Launched:
    found.layout, found.plan = layout, None
    return Launched(found)


def _file_of(name: str, beside: Path, given: Sequence[Path]) -> Path | None:
    """The recipe's file: among those that were given, or beside the one that names it."""
    if not NAME.fullmatch(name):
        return None
    name = str(Path(name).with_suffix("")) if name.endswith(YAML) else str(Path(name))
    for path in (one for one in given if one.suffix in YAML):
        if f"/{path.with_suffix('').as_posix()}".endswith(f"/{name}"):
            return path
    folders = (beside.parent, beside.parent / "recipes")
    paths = (folder / f"{name}{ending}" for folder in folders for ending in YAML)
    here = next((path for path in paths if path.is_file()), None)
    by_stem = [one for one in given if one.suffix in YAML and one.stem == Path(name).name]
    return here or next(iter(by_stem), None)


def _paths(over: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Values in dictionaries by their paths, as a recipe's keys have them."""
    for key, value in over.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _paths(value, name)
        else:
            yield name, value


def _answers(job: Estimator, found: Job, answers: Mapping[str, Any]) -> dict[str, Any]:
    """The estimator's machines take the place of the recipe's."""
    here = dict(answers)
    if found.machines.instance:
        here["instance_type"] = found.machines.instance
    if job.get("instance_count") is not None and found.machines.nodes:
        here["num_nodes"] = found.machines.nodes
    return here


def _take(found: Job, recipe: Recipe) -> None:
    """What the recipe says, with what the estimator says beside it."""
    run, asked = recipe.job, found.machines.asked
    found.machines = replace(run.machines, asked=[*asked, *run.machines.asked])
    found.layout, found.plan = (Layout(), None) if asked else (run.layout, run.plan)
    if run.refused:
        found.layout, found.plan = run.layout, None
    found.flags = {**run.flags, **found.flags}
    found.minutes, found.config = found.minutes or run.minutes, run.config
