"""A job that left the service, as a run: the torchrun line, and the files of clusters."""

import json
import shlex
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.cluster.described_run import ClusterRun, describe
from helpers.lab.cluster.kubeflow import train_job
from helpers.lab.cluster.sagemaker import estimator_arguments
from helpers.lab.cluster.skypilot import sky_task
from helpers.lab.cluster.slurm import slurm_script
from helpers.lab.launch.command import MEET
from helpers.lab.launch.flags import to_words
from helpers.planner.hardware.lookup import find_instance
from helpers.smp.jobs.job import Job

IMAGE, ROLE = "YOUR-IMAGE", "YOUR-ROLE"
A_DAY = 24 * 60  # minutes
SKY = {"A100-40": "A100", "A100-80": "A100-80GB", "V100-16": "V100", "V100-32": "V100-32GB"}
ASKED = {
    "model": "MODEL",
    "data": "DATA",
}  # said as they are, so that a run without them ends at once


def flags_of(job: Job) -> dict[str, Any]:
    """Flags of helpers.train, the plan's among them, and MODEL or DATA for what is not known."""
    return {**ASKED, **job.run_flags()}


def torchrun_line(job: Job) -> str:
    """What starts the run, on each of its nodes."""
    where = job.machines
    start = ["--nnodes", str(where.nodes), *MEET] if (where.nodes or 1) > 1 else ["--standalone"]
    words = to_words({**flags_of(job), "out": f"runs/{_described(job).name}"})
    ranks = ["--nproc-per-node", str(where.nproc or 1)]
    env = [f"{name}={shlex.quote(value)}" for name, value in job.env.items()]
    line = shlex.join(["torchrun", *start, *ranks, "-m", "helpers.train", *words])
    return " ".join([*env, line])


def forms(job: Job) -> dict[str, str]:
    """The job's files by their names. A form that cannot be is its reason."""
    files = {"run.sh": f"#!/usr/bin/env bash\n{torchrun_line(job)}\n"}
    run = _described(job)
    minutes = job.minutes or A_DAY
    gpus = job.machines.instance is not None
    makers = {
        "slurm.sh": lambda: slurm_script(run, minutes=minutes, gpus=gpus),
        "trainjob.json": lambda: _json(train_job(run, image=IMAGE, gpus=gpus)),
        "sky.json": lambda: _json(sky_task(run, accelerators=accelerators(job))),
        "estimator.json": lambda: _json(_estimator(job, minutes)),
    }
    for name, make in makers.items():
        try:
            files[name] = make()
        except UserError as error:
            files[f"{name}.refused"] = f"{error}\n"
    if job.metrics:
        rows = [one.definition() for one in job.metrics if one.regex]
        files["metric_definitions.json"] = _json(rows)
    return files


def accelerators(job: Job) -> str | None:
    """A node's GPUs as SkyPilot names them; None where there are none."""
    if job.machines.instance is None:
        return None
    instance = find_instance(job.machines.instance)
    return f"{SKY.get(instance.gpu, instance.gpu.partition('-')[0])}:{job.machines.nproc}"


def _described(job: Job, restarts: int | None = None) -> ClusterRun:
    return describe(
        "scripts/train.py",
        nodes=job.machines.nodes or 1,
        nproc=job.machines.nproc or 1,
        env=job.env,
        restarts=job.restarts if restarts is None else restarts,
        out=None,
        **flags_of(job),
    )


def _estimator(job: Job, minutes: int) -> dict[str, Any]:
    if job.machines.instance is None:
        raise UserError("an estimator needs an instance with GPUs, and none is known")
    return estimator_arguments(
        _described(job, restarts=0),
        image=IMAGE,
        role=ROLE,
        instance_type=job.machines.instance,
        minutes=minutes,
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"
