"""A run as a training job of Amazon SageMaker."""

import json
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_count
from helpers.lab.cluster.described_run import ClusterRun
from helpers.lab.launch.command import TRAINING_SCRIPT
from helpers.lab.paths import ROOT
from helpers.planner.hardware.lookup import find_instance

ENTRY = ROOT / "scripts" / "cluster" / "from_hyperparameters.py"
OUT = "/opt/ml/model"  # what lies here is uploaded at the job's end


def estimator_arguments(
    run: ClusterRun, *, image: str, role: str, instance_type: str, minutes: int = 24 * 60
) -> dict[str, Any]:
    """Keyword arguments of sagemaker.pytorch.PyTorch, version 2 of the package.

    The job gets scripts/, helpers/ and data/ of the project and starts the script by torchrun, with
    one rank per GPU. What the run writes lies under /opt/ml/model and is uploaded at the end.

    Args:
        image: of a training container with the project's packages.
        role: that the job acts as.
        minutes: after which the job is stopped.

    Raises:
        UserError: minutes are no whole number, the instance has not `nproc` GPUs, or the script is
            not train.py.
    """
    check_count("minutes", minutes)
    if run.program != (TRAINING_SCRIPT,):
        words = " ".join(run.program)
        raise UserError(f"a SageMaker job starts {TRAINING_SCRIPT}, not {words}")
    instance = find_instance(instance_type)
    if instance.gpus != run.nproc:
        raise UserError(
            f"{instance.name} has {instance.gpus} GPUs and gets a rank on each, "
            f"but nproc is {run.nproc}"
        )
    if run.restarts:
        raise UserError("a SageMaker job starts its ranks once: restarts must be 0")
    return {
        "image_uri": image,
        "entry_point": ENTRY.name,
        "source_dir": str(ENTRY.parent),
        "dependencies": [str(ROOT / part) for part in ("scripts", "helpers", "data")],
        "role": role,
        "instance_count": run.nodes,
        "instance_type": f"ml.{instance.name}",
        "distribution": {"torch_distributed": {"enabled": True}},
        "hyperparameters": _hyperparameters(run.flags | {"out": OUT}),
        "environment": run.env,
        "base_job_name": run.name,
        "max_run": 60 * minutes,
    }


def _hyperparameters(flags: dict[str, Any]) -> dict[str, Any]:
    """Each flag with a value, switches too: see scripts/cluster/from_hyperparameters.py."""
    return {name.replace("_", "-"): _one_word(value) for name, value in flags.items()}


def _one_word(value: Any) -> Any:
    """A list is JSON."""
    if isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, Path) else json.dumps([str(item) for item in value])
