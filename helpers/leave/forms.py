"""A job that left the service, as a run: the torchrun line, and the files of clusters."""

import json
import shlex
from dataclasses import replace
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.ranks import start_of_a_node
from helpers.lab.cluster.described_run import ClusterRun, describe
from helpers.lab.cluster.kubeflow import train_job
from helpers.lab.cluster.sagemaker import estimator_arguments
from helpers.lab.cluster.skypilot import sky_task
from helpers.lab.cluster.slurm import slurm_script
from helpers.lab.launch.flags import to_words
from helpers.planner.hardware.lookup import find_instance
from helpers.smp.jobs.job import Job
from helpers.smp.jobs.tuners import Sweep
from helpers.smp.reading.values import is_known, unknown_in

IMAGE, ROLE = "YOUR-IMAGE", "YOUR-ROLE"
A_DAY = 24 * 60  # minutes
HEAD_IS_ASKED = ': "${HEAD:?is the address of the first node}"\n'  # without it the shell ends here
SKY = {"A100-40": "A100", "A100-80": "A100-80GB", "V100-16": "V100", "V100-32": "V100-32GB"}
ASKED = {
    "model": "MODEL",
    "data": "DATA",
}  # said as they are, so that a run without them ends at once


def flags_of(job: Job) -> dict[str, Any]:
    """Flags of helpers.train, the plan's among them, and MODEL or DATA for what is not known."""
    return {**ASKED, **job.run_flags()}


def torchrun_line(job: Job) -> str:
    """What starts the run, on each of its nodes; of several, HEAD is the first one's address."""
    words = to_words({**flags_of(job), "out": f"runs/{_described(job).name}"})
    env = [f"{name}={shlex.quote(value)}" for name, value in job.env.items()]
    start = start_of_a_node(job.machines.nodes or 1, job.machines.nproc or 1)
    return " ".join([*env, start, shlex.join(["-m", "helpers.train", *words])])


def sweep_line(sweep: Sweep) -> str:
    """What starts a sweep over the runs of a tuner's job."""
    job = sweep.job
    space = [f"--space={name}={':'.join(map(str, one))}" for name, one in sweep.space.items()]
    words = ["python", "-m", "helpers.lab.comparison.sweep", "helpers.train", *space]
    words += ["--trials", str(sweep.trials or "TRIALS"), "--sampler", sweep.sampler]
    words += ["--objective", sweep.objective]
    words += ["--direction", sweep.direction] if sweep.direction == "maximize" else []
    words += ["--halving"] if sweep.halving and sweep.direction == "minimize" else []
    words += ["--nproc", str(job.machines.ranks or 1), "--out", "runs/sweep", "--"]
    given = {"steps": "STEPS", **flags_of(job)}
    fixed = {name: value for name, value in given.items() if name not in (*sweep.space, "epochs")}
    return shlex.join([*words, *to_words(fixed)])


def script_line(job: Job, script: str) -> str:
    """What starts a converted script, with the job's own arguments for it."""
    given = job.estimator.get("hyperparameters") if job.estimator else None
    words: list[str] = []
    for name, value in given.items() if isinstance(given, dict) else ():
        words += [f"--{name}", str(value) if is_known(value) else str(unknown_in(value)).upper()]
    start = start_of_a_node(job.machines.nodes or 1, job.machines.nproc or 1)
    return f"{start} {shlex.join([script, *words])}"


def refuse_what_training_does_not_take(job: Job) -> None:
    """A value of the job's own that no run can have, as a rate below 0, is a refusal of that job
    alone."""
    if job.plan is None or job.refused:
        return
    try:
        _described(job)
    except UserError as error:
        job.layout = replace(job.layout, refused=str(error))


def run_files(job: Job) -> dict[str, str]:
    """The job's files by their names. A form that cannot be is its reason."""
    asked = HEAD_IS_ASKED if (job.machines.nodes or 1) > 1 else ""
    files = {"run.sh": f"#!/usr/bin/env bash\n{asked}{torchrun_line(job)}\n"}
    if job.config is not None:
        files["model/config.json"] = job.config.to_json_string()
    run = _described(job)
    minutes = job.minutes or A_DAY
    gpus = job.machines.has_gpus
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
    """A node's GPUs as SkyPilot names them; None where there are none.

    Raises:
        UserError: there are, and it is not known which.
    """
    if job.machines.instance is None and job.machines.has_gpus:
        raise UserError("which GPUs the machines have is not known: --set instance_type=NAME")
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
    # characters as they are: YAML, as SkyPilot reads its task, does not join JSON's escaped halves
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
