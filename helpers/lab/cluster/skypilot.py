"""A run as a task of SkyPilot, which rents the machines of whichever cloud has them."""

import re
import shlex
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.cluster.described_run import ClusterRun, check_run

PORT = 29400


def sky_task(
    run: ClusterRun, *, accelerators: str | None, setup: str = "bash scripts/setup"
) -> dict[str, Any]:
    """A task for `sky launch`, which takes it written as JSON with all characters as they are
    (`ensure_ascii=False`): that is YAML, too.

    SkyPilot copies the folder in which it is called to every node, and tells each its rank and all
    addresses by SKYPILOT_ variables. The nodes share no disk: checkpoints that outlive them need a
    bucket, which `file_mounts` names.

    Args:
        accelerators: of a node, as SkyPilot writes them: "A100:8"; None asks for CPUs alone.
        setup: what each node runs once.

    Raises:
        UserError: the accelerators are not written so, or not as many as ranks of a node.
    """
    check_run(run)
    if not isinstance(setup, str):
        raise UserError(f"setup is {setup!r:.40}: give the line of a shell")
    resources = {"cpus": f"{run.nproc}+"}
    if accelerators is not None:
        _check_accelerators(accelerators, run.nproc)
        resources = {"accelerators": accelerators}
    torchrun = [
        f"--nnodes={run.nodes}",
        f"--nproc-per-node={run.nproc}",
        '--node-rank="$SKYPILOT_NODE_RANK"',
        '--master-addr="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"',
        f"--master-port={PORT}",
        f"--max-restarts={run.restarts}",
        shlex.join(run.words),
    ]
    return {
        "name": run.name,
        "num_nodes": run.nodes,
        "resources": resources,
        "workdir": ".",
        "envs": dict(run.env),
        "setup": setup,
        "run": f".venv/bin/python -m torch.distributed.run {' '.join(torchrun)}",
    }


def _check_accelerators(text: Any, nproc: int) -> None:
    """A kind and a number, which is 1 where none is written, one for each rank."""
    parts = re.fullmatch(r"[A-Za-z][\w.-]*(?::([1-9]\d{0,4}))?", str(text), re.ASCII)
    if not isinstance(text, str) or parts is None:
        raise UserError(f'accelerators is {text!r:.40}: write a kind and a number, as "A100:8"')
    count = int(parts[1] or 1)
    if count != nproc:
        raise UserError(f"{text} gives a node {count} for a rank each, but nproc is {nproc}")
