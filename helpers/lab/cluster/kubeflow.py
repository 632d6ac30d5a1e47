"""A run as a TrainJob of Kubeflow Trainer, for Kubernetes."""

import re
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.cluster.described_run import ClusterRun, check_run, check_text

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123
NAME = re.compile(rf"{LABEL.pattern}(\.{LABEL.pattern})*")
# Kubeflow Trainer tells torchrun these itself, and refuses a job that does
TOLD = {f"PET_{name}" for name in ("NNODES", "NPROC_PER_NODE", "NODE_RANK")}
TOLD |= {"PET_MASTER_ADDR", "PET_MASTER_PORT"}


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

    Raises:
        UserError: a name that Kubernetes does not take, or a variable that is torchrun's.
    """
    check_run(run)
    check_text("image", image)
    for what, name, form in (("namespace", namespace, LABEL), ("runtime", runtime, NAME)):
        if not isinstance(name, str) or not form.fullmatch(name):
            raise UserError(f"{what} is {name!r:.40}: give a name of a-z, 0-9 and -")
    if taken := sorted(TOLD & run.env.keys()):
        raise UserError(f"{taken[0]} in env is told by Kubeflow itself: leave it out")
    command = ["torchrun", f"--max-restarts={run.restarts}", *run.words]
    trainer: dict[str, Any] = {
        "image": image,
        "command": [_as_it_is(word) for word in command],
        "numNodes": run.nodes,
        "numProcPerNode": run.nproc,
        "env": [{"name": name, "value": _as_it_is(value)} for name, value in run.env.items()],
    }
    if gpus:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": str(run.nproc)}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": run.name, "namespace": namespace},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": trainer},
    }


def _as_it_is(text: str) -> str:
    """Kubernetes would take $(NAME) for a variable, and makes one $ of two."""
    return text.replace("$", "$$")
