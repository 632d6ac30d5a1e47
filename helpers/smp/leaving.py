"""Scripts, notebooks and recipes that leave the service: what each use became, and the runs.

    found = leave([Path("train.py"), Path("job.ipynb")], answers={"region": "here"})
    found.lines          # every use: what it became, what is lost, what to do by hand
    found.jobs           # a run for each estimator, or for a script's own configuration
    found.mistakes, found.sweeps, found.unread

Nothing is run or imported of what is read.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, as_path
from helpers.smp.jobs.estimators import Estimator, estimators
from helpers.smp.jobs.job import Job, job_of, job_of_script
from helpers.smp.jobs.lines import Line, configurations, lines
from helpers.smp.jobs.mistakes import Mistake, mistakes
from helpers.smp.jobs.tuners import Sweep, sweeps
from helpers.smp.reading.interpreter import Interpreter
from helpers.smp.reading.names import Names
from helpers.smp.reading.sources import Place, Program, Source, read_source
from helpers.smp.recipes.launched import YAML, launched, names_recipe
from helpers.smp.recipes.recipe import read_recipe


@dataclass
class Read:
    """One program of a file, gone through."""

    source: Source
    program: Program
    names: Names
    followed: Interpreter
    estimators: list[Estimator] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def module(self) -> str:
        return self.source.path.stem


@dataclass
class Leaving:
    """What was found in all files."""

    lines: list[Line] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    unread: list[tuple[Place, str]] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    reads: list[Read] = field(default_factory=list)

    @property
    def asked(self) -> list[str]:
        """Names whose values the files do not give."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.asked))


def leave(paths: Sequence[Path], answers: Mapping[str, Any] | None = None) -> Leaving:
    """All files together: a notebook's estimators find their scripts among them.

    Args:
        answers: values of names that the files do not give.

    Raises:
        UserError: a file cannot be read, or is no path, in one line.
    """
    answers = dict(answers or {})
    found = Leaving()
    paths = list(dict.fromkeys(map(as_path, paths)))
    recipes = [path for path in paths if path.suffix in YAML]
    sources = [read_source(path) for path in paths if path.suffix not in YAML]
    try:
        taken = _read(sources, recipes, answers, found)
    except RecursionError:
        raise UserError("an expression is nested too deeply to be read") from None
    alone = [read_recipe(path, answers) for path in recipes if path not in taken]
    found.jobs[:0] = [recipe.job for recipe in alone]
    found.lines = sorted([*found.lines, *(line for recipe in alone for line in recipe.lines)])
    return found


def _read(
    sources: list[Source], recipes: list[Path], answers: dict[str, Any], found: Leaving
) -> set[Path]:
    """All that the sources say; the recipes that they start."""
    taken: set[Path] = set()
    others: dict[str, Interpreter] = {}
    for source in sources:
        found.unread += source.unread
        for program in source.programs:
            followed = Interpreter(program.tree, answers, others=others).walk()
            read = Read(source, program, Names(program.tree), followed)
            read.estimators = estimators(program, followed)
            others[read.module] = followed
            found.reads.append(read)
            found.wanted |= followed.wanted
            if not followed.finished:
                place = program.place(1)
                found.unread.append((place, "too long to be followed to its end: values may lack"))
    found.beside = _beside(found.reads)
    used: set[Path] = set()
    for read in found.reads:
        for job in read.estimators:
            if names_recipe(job):
                run = launched(job, read.source.path, recipes, answers)
                found.jobs.append(run.job)
                found.lines += run.lines
                taken |= {run.path} if run.path else set()
                continue
            entry = _entry_of(job, found.reads)
            script = _again(entry, job, answers, others) if entry else None
            if entry and script:  # its lines speak of it as this job starts it
                used.add(entry.source.path)
                entry.followed = script
            found.jobs.append(job_of(job, script, answers))
        found.sweeps += sweeps(read.program, read.followed, found.jobs)
    for read in found.reads:
        read.lines = lines(read.program, read.names, read.followed, read.estimators)
        found.lines += read.lines
        found.mistakes += mistakes(read.program, read.names)
        if read.source.path not in used:
            for made in configurations(read.followed):
                place = read.program.place(made.node.lineno)
                found.jobs.append(job_of_script(read.followed, place, made, answers))
    found.lines.sort()
    found.mistakes.sort()
    found.wanted |= {
        "processes",
        "processes_per_host",
        "instance_type",
        "instance_count",
        "num_nodes",
        "lora_rank",
    }
    return taken


def _entry_of(job: Estimator, reads: list[Read]) -> Read | None:
    """The script that an estimator starts, if it is among the files."""
    entry = job.get("entry_point")
    if not isinstance(entry, str):
        return None
    name = Path(entry).name
    return next((read for read in reads if read.source.path.name == name), None)


def _again(
    read: Read, job: Estimator, answers: dict[str, Any], others: dict[str, Interpreter]
) -> Interpreter:
    """A script gone through with the arguments that the job gives it."""
    given = job.get("hyperparameters")
    arguments = (
        {str(k).replace("-", "_"): v for k, v in given.items()} if isinstance(given, dict) else {}
    )
    return Interpreter(read.program.tree, answers, arguments, others).walk()


def _beside(reads: list[Read]) -> list[str]:
    """Files beside those that were given, which these import and which use the libraries, too."""
    given = {read.source.path.resolve() for read in reads}
    found: dict[str, None] = {}
    for read in reads:
        for node in ast.walk(read.program.tree):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                path = read.source.path.parent / f"{module.replace('.', '/')}.py"
                if path.is_file() and path.resolve() not in given and _names_library(path):
                    found[str(path)] = None
    return list(found)


def _names_library(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[: 2**20]
    except OSError:
        return False
    return any(word in text for word in ("smdistributed", "torch.sagemaker", "smdebug", "smppy"))
