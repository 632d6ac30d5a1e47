"""A run as a training job of Amazon SageMaker."""

import json
from numbers import Real
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_count
from helpers.lab.cluster.described_run import ClusterRun, check_run, check_text
from helpers.lab.launch.command import TRAINING_SCRIPT
from helpers.lab.paths import ROOT
from helpers.planner.hardware.lookup import find_instance

ENTRY = ROOT / "scripts" / "cluster" / "from_hyperparameters.py"
OUT = "/opt/ml/model"  # what lies here is uploaded at the job's end
MOST_MINUTES = 28 * 24 * 60  # of a training job: SageMaker's quotas
LONGEST = 2500  # characters of a hyperparameter: CreateTrainingJob


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
        UserError: minutes are no whole number or more than 28 days, the instance has not `nproc`
            GPUs, the script is not train.py, or a flag is none that a job can hand to it.
    """
    check_run(run)
    check_text("image", image)
    if not isinstance(role, str) or not role:
        raise UserError(f"role is {role!r:.40}: give the name of the role that the job acts as")
    check_count("minutes", minutes)
    if minutes > MOST_MINUTES:
        raise UserError(f"minutes must be at most {MOST_MINUTES}: no SageMaker job takes longer")
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
    return {name.replace("_", "-"): _one_word(name, value) for name, value in flags.items()}


def _one_word(name: str, value: Any) -> Any:
    """A list is JSON, so no text may look like one, nor like a switch."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Real | str | Path):
        word = value if type(value) in (int, float, str) else str(value)
        if isinstance(word, str) and (word.startswith("[") or word in ("True", "False")):
            raise UserError(f"{name} is {word!r:.40}, which a job would not hand over as a text")
    else:
        word = json.dumps([str(item) for item in value])
    if len(str(word)) > LONGEST:
        raise UserError(f"{name} has more than the {LONGEST} characters of a hyperparameter")
    return word
