"""A run as a batch script for Slurm: slurm.sh.in, filled in.

srun is told cpus-per-task, which it no longer takes from sbatch (since 22.05). Which agent keeps
the rendezvous is said outright: told from names of hosts, it is sometimes none.
"""

import os
import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from helpers.engine.errors import UserError, check_count
from helpers.lab.cluster.described_run import MOST, THREADS, ClusterRun, check_run

A_YEAR = 366 * 24 * 60  # minutes; of very large numbers sbatch makes no limit at all
RANKS = ("nodes", "ntasks", "ntasks-per-node")  # options that make them
UNREAD = re.compile(r"""[\s'"\\#\0]""")  # in a script, sbatch ends or changes a value at these


def slurm_script(
    run: ClusterRun,
    *,
    minutes: int,
    gpus: bool = True,
    options: Mapping[str, str] | None = None,
    python: str = ".venv/bin/python",
) -> str:
    """A batch script for Slurm's sbatch, to be submitted in the project root on a shared disk.

    One task a node starts torchrun's agent; the agents meet at the first node, at a port that
    follows from the job's number. When one ends with an error, Slurm ends the others. With restarts
    Slurm may queue the job again after a node was lost.

    Args:
        minutes: the job's time limit.
        gpus: ask for a GPU a rank.
        options: more of sbatch's, such as {"partition": "gpu"}; True makes a switch of one.
        python: with the project's packages, from the project root.

    Raises:
        UserError: minutes that are no whole number, or an option that sbatch cannot read or that
            makes other ranks than the run's.
    """
    check_run(run)
    check_count("minutes", minutes)
    if minutes > A_YEAR:
        raise UserError(f"minutes must be at most {A_YEAR}, a year")
    cpus = run.nproc * int(run.env[THREADS])
    if cpus > MOST:
        raise UserError(f"{cpus} CPUs a node, nproc x threads: at most {MOST}")
    if not isinstance(python, (str, os.PathLike)) or not str(python) or str(python)[0] == "~":
        raise UserError(f"python is {python!r:.40}: give the path of an interpreter, without ~")
    asked = {
        "job-name": run.name,
        "nodes": run.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cpus,
        "time": minutes,
        **({"gpus-per-node": run.nproc} if gpus else {}),
        **_checked(options),
    }
    lines = [
        f"#SBATCH --{name}" if value is True else f"#SBATCH --{name}={value}"
        for name, value in asked.items()
    ]
    if run.restarts:
        lines.append("#SBATCH --requeue")
    template = files(__package__).joinpath("slurm.sh.in").read_text(encoding="utf-8")
    return template.format(
        options="\n".join(lines),
        exports="\n".join(f"export {name}={shlex.quote(text)}" for name, text in run.env.items()),
        python=shlex.quote(str(python)),
        nproc=run.nproc,
        restarts=run.restarts,
        words=shlex.join(run.words),
    )


def _checked(options: Any) -> Mapping[str, str | int | bool]:
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UserError(f"options is {options!r:.40}: give them by name, as {{'partition': 'gpu'}}")
    for name, value in options.items():
        if name in RANKS:
            raise UserError(f"--{name} follows from the run: describe it with other nodes or nproc")
        named = isinstance(name, str) and re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        switch = value is True or (isinstance(value, str | int) and value is not False)
        if not named or not switch or not str(value) or UNREAD.search(str(value)):
            raise UserError(f"--{name}={value} is no option that sbatch can read from a script")
    return options
