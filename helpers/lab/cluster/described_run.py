"""A run for a cluster, by the arguments that `launch` takes, checked before it waits in a queue."""

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_count
from helpers.engine.plan import ParallelPlan
from helpers.lab.launch.command import find_program
from helpers.lab.launch.flags import carried_words, check_carried, check_names, to_words
from helpers.lab.paths import check_out

MOST = 65_000  # of anything: Slurm counts CPUs, tasks and nodes in 16 bits
VARIABLE = re.compile(r"[a-z_]\w*", re.ASCII | re.IGNORECASE)  # what a shell can export
READ_ONLY = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"}  # bash(1)
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class ClusterRun:
    """A program on `nodes` nodes of `nproc` ranks.

    program: words of torchrun's command line, from the project root, in which it runs.
    flags: the program's own, by name; True is a switch.
    env: variables of every rank.
    restarts: times that the ranks may be started again after a failure.
    """

    name: str
    program: tuple[str, ...]
    nodes: int
    nproc: int
    flags: dict[str, Any] = field(default_factory=dict, hash=False)
    env: dict[str, str] = field(default_factory=dict, hash=False)
    restarts: int = 0

    @property
    def words(self) -> list[str]:
        """The program and its flags."""
        return [*self.program, *to_words(self.flags)]


def describe(
    script: str | Path,
    *,
    nodes: int = 1,
    nproc: int = 1,
    out: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    threads: int = 1,
    restarts: int = 0,
    **flags: Any,
) -> ClusterRun:
    """A run by the arguments that `launch` takes.

    Args:
        nproc: ranks on each node, one a device.
        out: the run's folder as the nodes see it, by default runs/NAME; all nodes must share it.
        threads: CPU threads a rank.
        restarts: times that torchrun may start the ranks again; give `resume="auto"` and
            `checkpoint_every` with it, else they begin anew.
        flags: the script's own, as for `launch`.

    Raises:
        UserError: no such script, a flag that cannot be one or that training does not take, a
            variable that a shell cannot export, or a plan for another number of ranks.
    """
    for what, count, least in (
        ("nodes", nodes, 1),
        ("nproc", nproc, 1),
        ("threads", threads, 1),
        ("restarts", restarts, 0),
    ):
        check_count(what, count, least)
        if count > MOST:
            raise UserError(f"{what} must be at most {MOST}")
    program = find_program(script)
    if Path(program.words[0]).is_absolute():
        raise UserError(f"{script} lies outside the project, which is all that the nodes have")
    given = {flag: value for flag, value in flags.items() if value is not None}
    name = _name(str(given.get("model") or program.label))
    if out is not None:
        check_out(out)
    given |= {"out": f"runs/{name}" if out is None else str(out)}
    check_names(given)
    words = carried_words(given)
    if program.trains:
        _check_ranks(nodes * nproc, given)
        _check_flags(words)
    variables = {THREADS: str(threads), "PYTHONUNBUFFERED": "1", **_checked_variables(env)}
    return ClusterRun(name, program.words, nodes, nproc, given, variables, restarts)


def check_run(run: Any) -> None:
    """Raise a UserError if this is no run that `describe` has made."""
    if not isinstance(run, ClusterRun):
        raise UserError(f"run is {run!r:.40}: give what describe(...) returns")


def check_text(name: str, value: Any) -> None:
    """Raise a UserError if a value is no text, or has room in it that a name has not."""
    if not isinstance(value, str) or not value or re.search(r"\s|\0", value):
        raise UserError(f"{name} is {value!r:.40}: give a name without spaces")


def _check_ranks(ranks: int, flags: Mapping[str, Any]) -> None:
    """The plan fills the ranks."""
    names = {field.name for field in fields(ParallelPlan)}
    plan = ParallelPlan(**{name: flags[name] for name in names & flags.keys()})
    if plan.world_size != ranks:
        raise UserError(
            f"the plan is for {plan.world_size} ranks, but nodes x nproc is {ranks}: "
            "their numbers must be equal"
        )


def _check_flags(words: list[str]) -> None:
    """Training takes them: it is asked here as it would be asked on the nodes."""
    from helpers.train.arguments import parse

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            parse(words)
    except SystemExit:
        reason = said.getvalue().strip().removeprefix("error: ")
        raise UserError(reason or "help is no flag of a run") from None


def _checked_variables(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise UserError(f"env is {env!r:.40}: give variables, as {{'NAME': 'value'}}")
    for name, value in env.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name) or name in READ_ONLY:
            raise UserError(f"env has {name!r:.40}, which is no variable that a shell can export")
        if not isinstance(value, str | int | float):
            raise UserError(f"env has {name} = {value!r:.40}: give a text or a number")
        check_carried(str(value))
    threads = str(env.get(THREADS, 1))
    if not re.fullmatch(r"[1-9]\d{0,4}", threads, re.ASCII):
        raise UserError(f"{THREADS} is {threads!r:.40}: give a whole number, as threads")
    return {name: str(value) for name, value in env.items()}


def _name(text: str) -> str:
    """A name that every cluster takes: a DNS label, RFC 1035."""
    label = re.sub(r"[^a-z0-9]+", "-", Path(text).name.lower()).strip("-")[:40].rstrip("-")
    return label if label[:1].isalpha() else f"run-{label}".rstrip("-")
