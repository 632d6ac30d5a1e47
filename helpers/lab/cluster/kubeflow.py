"""A run as a TrainJob of Kubeflow Trainer, for Kubernetes."""

from typing import Any

from helpers.lab.cluster.described_run import ClusterRun


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
    command = ["torchrun", f"--max-restarts={run.restarts}", *run.words]
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
