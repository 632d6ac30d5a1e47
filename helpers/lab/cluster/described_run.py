"""A run for a cluster, by the arguments that `launch` takes, checked before it waits in a queue."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.lab.launch.command import find_program
from helpers.lab.launch.flags import to_words


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
        UserError: no such script, a flag that cannot be one, or a plan for another number of ranks.
    """
    counts = {"nodes": (nodes, 1), "nproc": (nproc, 1), "threads": (threads, 1)}
    for what, (count, least) in (counts | {"restarts": (restarts, 0)}).items():
        if type(count) is not int or count < least:
            raise UserError(f"{what} is {count!r}: at least {least} is needed")
    program = find_program(script)
    if Path(program.words[0]).is_absolute():
        raise UserError(f"{script} lies outside the project, which is all that the nodes have")
    if program.trains:
        _check_ranks(nodes * nproc, flags)
    to_words(flags)  # a flag that cannot be one fails here
    name = _name(str(flags.get("model") or program.label))
    given = {flag: value for flag, value in flags.items() if value is not None}
    return ClusterRun(
        name=name,
        program=program.words,
        nodes=nodes,
        nproc=nproc,
        flags=given | {"out": str(out or f"runs/{name}")},
        env={
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
            **{key: str(value) for key, value in (env or {}).items()},
        },
        restarts=restarts,
    )


def _check_ranks(ranks: int, flags: Mapping[str, Any]) -> None:
    """The plan fills the ranks."""
    names = {field.name for field in fields(ParallelPlan)}
    plan = ParallelPlan(**{name: flags[name] for name in names & flags.keys()})
    if plan.world_size != ranks:
        raise UserError(
            f"the plan is for {plan.world_size} ranks, but nodes x nproc is {ranks}: "
            "their numbers must be equal"
        )


def _name(text: str) -> str:
    """A name that every cluster takes: a DNS label, RFC 1035."""
    label = re.sub(r"[^a-z0-9]+", "-", Path(text).name.lower()).strip("-")[:40].rstrip("-")
    return label if label[:1].isalpha() else f"run-{label}".rstrip("-")
