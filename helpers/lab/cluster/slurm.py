"""A run as a batch script for Slurm: slurm.sh.in, filled in.

srun is told cpus-per-task, which it no longer takes from sbatch (since 22.05). Which agent keeps
the rendezvous is said outright: told from names of hosts, it is sometimes none.
"""

import re
import shlex
from collections.abc import Mapping
from importlib.resources import files

from helpers.engine.errors import UserError, check_count
from helpers.lab.cluster.described_run import ClusterRun


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
        options: more of sbatch's, such as {"partition": "gpu", "account": "team"}.
        python: with the project's packages, from the project root.

    Raises:
        UserError: minutes that are no whole number, or an option that sbatch cannot read.
    """
    check_count("minutes", minutes)
    asked = {
        "job-name": run.name,
        "nodes": run.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": run.nproc * int(run.env["OMP_NUM_THREADS"]),
        "time": minutes,
        **({"gpus-per-node": run.nproc} if gpus else {}),
        **(options or {}),
    }
    for name, value in asked.items():
        if not re.fullmatch(r"[a-z][a-z-]*", name) or re.search(r"\s", str(value)):
            raise UserError(f"--{name}={value} is no option that sbatch can read from a script")
    lines = [f"#SBATCH --{name}={value}" for name, value in asked.items()]
    if run.restarts:
        lines.append("#SBATCH --requeue")
    template = files(__package__).joinpath("slurm.sh.in").read_text(encoding="utf-8")
    return template.format(
        options="\n".join(lines),
        exports="\n".join(f"export {name}={shlex.quote(text)}" for name, text in run.env.items()),
        python=shlex.quote(python),
        nproc=run.nproc,
        restarts=run.restarts,
        words=shlex.join(run.words),
    )
