"""A run as a task of SkyPilot, which rents the machines of whichever cloud has them."""

import shlex
from typing import Any

from helpers.lab.cluster.described_run import ClusterRun

PORT = 29400


def sky_task(
    run: ClusterRun, *, accelerators: str | None, setup: str = "bash scripts/setup"
) -> dict[str, Any]:
    """A task for `sky launch`; written as JSON, which is YAML too, it takes it.

    SkyPilot copies the folder in which it is called to every node, and tells each its rank and all
    addresses by SKYPILOT_ variables. The nodes share no disk: checkpoints that outlive them need a
    bucket, which `file_mounts` names.

    Args:
        accelerators: of a node, as SkyPilot writes them: "A100:8"; None asks for CPUs alone.
        setup: what each node runs once.
    """
    torchrun = [
        f"--nnodes={run.nodes}",
        f"--nproc-per-node={run.nproc}",
        '--node-rank="$SKYPILOT_NODE_RANK"',
        '--master-addr="$(head -n 1 <<< "$SKYPILOT_NODE_IPS")"',
        f"--master-port={PORT}",
        f"--max-restarts={run.restarts}",
        shlex.join(run.words),
    ]
    resources = {"accelerators": accelerators} if accelerators else {"cpus": f"{run.nproc}+"}
    return {
        "name": run.name,
        "num_nodes": run.nodes,
        "resources": resources,
        "workdir": ".",
        "envs": dict(run.env),
        "setup": setup,
        "run": f".venv/bin/python -m torch.distributed.run {' '.join(torchrun)}",
    }
