"""The run that `launch` would start here, written for a cluster that starts it there.

    run = describe("scripts/train.py", nodes=2, nproc=8, model="neox-20b", dp_shard=16)
    slurm_script(run, minutes=240)                                  a file for sbatch
    train_job(run, image="...")                                     an object for kubectl apply -f
    estimator_arguments(run, image="...", role="...", instance_type="ml.p4d.24xlarge")
                                                                    for sagemaker.pytorch.PyTorch

Each comes to the same: an agent of torchrun on every node, `nproc` ranks beneath each. Nothing is
started or written here.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.lab.launch.command import find_script, flag_words, from_root
from helpers.lab.paths import ROOT
from helpers.planner.hardware.lookup import find_instance

SAGEMAKER_ENTRY = ROOT / "scripts" / "sagemaker" / "from_hyperparameters.py"


@dataclass(frozen=True)
class ClusterRun:
    """A script on `nodes` nodes of `nproc` ranks.

    script: from the project root, in which it runs.
    flags: the script's own, by their names on the command line; True is a switch.
    env: variables of every rank.
    restarts: times that the ranks may be started again after a failure.
    """

    name: str
    script: str
    nodes: int
    nproc: int
    flags: dict[str, Any] = field(default_factory=dict, hash=False)
    env: dict[str, str] = field(default_factory=dict, hash=False)
    restarts: int = 0

    @property
    def arguments(self) -> list[str]:
        return flag_words(self.flags)


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
    for what, count in (("nodes", nodes), ("nproc", nproc), ("threads", threads)):
        if count < 1:
            raise UserError(f"{what} is {count}: at least 1 is needed")
    path = find_script(script)
    if not path.is_relative_to(ROOT):
        raise UserError(f"{script} lies outside the project, which is all that the nodes have")
    _check_ranks(path, nodes * nproc, flags)
    name = _name(str(flags.get("model") or path.stem))
    named = {flag.replace("_", "-"): value for flag, value in flags.items() if value is not None}
    flag_words(named)  # a flag that cannot be one fails here
    return ClusterRun(
        name=name,
        script=from_root(path),
        nodes=nodes,
        nproc=nproc,
        flags=named | {"out": str(out or f"runs/{name}")},
        env={
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
            **{key: str(value) for key, value in (env or {}).items()},
        },
        restarts=restarts,
    )


def _check_ranks(script: Path, ranks: int, flags: Mapping[str, Any]) -> None:
    """A plan that does not fill the ranks is found before the job has waited in a queue."""
    if script.name != "train.py":
        return
    names = {one.name for one in fields(ParallelPlan)}
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
    """
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
    again = ["#SBATCH --requeue"] if run.restarts else []
    words = " ".join(shlex.quote(word) for word in (run.script, *run.arguments))
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in run.env.items())
    return SLURM.format(
        options="\n".join([f"#SBATCH --{name}={value}" for name, value in asked.items()] + again),
        exports=exports,
        python=shlex.quote(python),
        nproc=run.nproc,
        restarts=run.restarts,
        words=words,
    )


# srun no longer takes cpus-per-task from sbatch (since 22.05). Which agent keeps the rendezvous is
# said outright: told from names of hosts, it is sometimes none.
SLURM = """\
#!/bin/bash
{options}

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
{exports}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c '
    python=$1 meet=$2
    shift 2
    exec "$python" -m torch.distributed.run --nnodes="$SLURM_NNODES" --nproc-per-node={nproc} \\
        --rdzv-backend=c10d --rdzv-endpoint="$meet" --rdzv-id="$SLURM_JOB_ID" \\
        --rdzv-conf=is_host=$((SLURM_NODEID == 0)) --max-restarts={restarts} "$@"
' agent {python} "$head:$port" {words}
"""


def train_job(
    run: ClusterRun,
    *,
    image: str,
    gpus: bool = True,
    runtime: str = "torch-distributed",
    namespace: str = "default",
) -> dict[str, Any]:
    """A TrainJob of Kubeflow Trainer v2; written as JSON, kubectl takes it.

    The runtime tells torchrun the nodes, the ranks and where they meet through PET_ variables.

    Args:
        image: holds the project and its packages, with the project root as working directory.
        gpus: ask for a GPU a rank.
        runtime: the ClusterTrainingRuntime; it mounts the disk that the nodes share.
    """
    command = ["torchrun", f"--max-restarts={run.restarts}", run.script, *run.arguments]
    trainer: dict[str, Any] = {
        "image": image,
        # Kubernetes would take $(NAME) in a command for a variable
        "command": [word.replace("$(", "$$(") for word in command],
        "numNodes": run.nodes,
        "numProcPerNode": run.nproc,
        "env": [{"name": name, "value": value} for name, value in run.env.items()],
    }
    if gpus:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": str(run.nproc)}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": run.name, "namespace": namespace},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": trainer},
    }


def estimator_arguments(
    run: ClusterRun, *, image: str, role: str, instance_type: str, minutes: int = 24 * 60
) -> dict[str, Any]:
    """Keyword arguments of sagemaker.pytorch.PyTorch, version 2 of the package.

    The job gets scripts/, helpers/ and data/ of the project and starts the script by torchrun, with
    one rank a GPU. What the run writes lies under /opt/ml/model and is uploaded at the end.

    Args:
        image: of a training container with the project's packages.
        role: that the job acts as.
        minutes: after which the job is stopped.

    Raises:
        UserError: the instance has not `nproc` GPUs, or the script is not train.py.
    """
    if run.script != "scripts/train.py":
        raise UserError(f"a SageMaker job starts scripts/train.py, not {run.script}")
    found = find_instance(instance_type)
    if found.gpus != run.nproc:
        raise UserError(
            f"{found.name} has {found.gpus} GPUs and gets a rank on each, but nproc is {run.nproc}"
        )
    if run.restarts:
        raise UserError("a SageMaker job starts its ranks once: restarts must be 0")
    return {
        "image_uri": image,
        "entry_point": SAGEMAKER_ENTRY.name,
        "source_dir": str(SAGEMAKER_ENTRY.parent),
        "dependencies": [str(ROOT / part) for part in ("scripts", "helpers", "data")],
        "role": role,
        "instance_count": run.nodes,
        "instance_type": f"ml.{found.name}",
        "distribution": {"torch_distributed": {"enabled": True}},
        "hyperparameters": _hyperparameters(run),
        "environment": run.env,
        "base_job_name": run.name,
        "max_run": 60 * minutes,
    }


def _hyperparameters(run: ClusterRun) -> dict[str, Any]:
    """Each flag with a value, switches too: see scripts/sagemaker/from_hyperparameters.py."""
    flags = {
        name: value if isinstance(value, bool | int | float | str) else _words(value)
        for name, value in run.flags.items()
    }
    return flags | {"out": "/opt/ml/model"}


def _words(value: Any) -> str:
    """What is no single word, as JSON text."""
    return str(value) if isinstance(value, Path) else json.dumps([str(one) for one in value])
