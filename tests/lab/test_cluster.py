"""What is written for clusters: by each client where it is installed, else by its rules."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.engine.errors import UserError
from helpers.lab.cluster.described_run import ClusterRun, describe
from helpers.lab.cluster.kubeflow import train_job
from helpers.lab.cluster.sagemaker import estimator_arguments
from helpers.lab.cluster.skypilot import sky_task
from helpers.lab.cluster.slurm import slurm_script
from helpers.lab.launch.flags import to_words
from helpers.train.arguments import parse
from tests.lab.launch.test_launch import FAULT
from tests.support.scripts import script

ROOT = Path(__file__).resolve().parents[2]
# long options of sbatch, https://slurm.schedmd.com/sbatch.html
SBATCH = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time", "gpus-per-node"}
SBATCH |= {"partition", "requeue"}
# https://sagemaker.readthedocs.io, version 2: PyTorch, Framework and EstimatorBase
PYTORCH = {"entry_point", "framework_version", "py_version", "source_dir", "hyperparameters"}
PYTORCH |= {"image_uri", "distribution", "compiler_config", "dependencies", "environment", "role"}
PYTORCH |= {"instance_count", "instance_type", "base_job_name", "max_run", "volume_size"}

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 1}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    rules = {"properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "object", **rules}


# trainer.kubeflow.org/v1alpha1, as its reference describes it (those parts of it that we fill)
TRAINER = closed(
    image=TEXT,
    command={"type": "array", "items": TEXT},
    args={"type": "array", "items": TEXT},
    numNodes=COUNT,
    numProcPerNode=COUNT,
    env={"type": "array", "items": closed(("name",), name=TEXT, value=TEXT)},
    resourcesPerNode=closed(
        limits={"type": "object", "additionalProperties": TEXT},
        requests={"type": "object", "additionalProperties": TEXT},
    ),
)
TRAIN_JOB = closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "trainer.kubeflow.org/v1alpha1"},
    kind={"const": "TrainJob"},
    metadata=closed(
        ("name",), name={**TEXT, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}, namespace=TEXT
    ),
    spec=closed(("runtimeRef",), runtimeRef=closed(("name",), name=TEXT), trainer=TRAINER),
)


@pytest.fixture
def run() -> ClusterRun:
    flags = {"model": "neox-tiny", "dp_shard": 16, "save": True, "background": False}
    options = {"nodes": 2, "nproc": 8, "restarts": 1, "resume": "auto", "checkpoint_every": 10}
    return describe("scripts/train.py", **options, **flags, env={"NCCL_DEBUG": "WARN"})


def options_of(script: str) -> dict[str, str]:
    """sbatch reads options from comments, and no more after the first command."""
    head = script.partition("\nset ")[0]
    lines = [line for line in head.splitlines() if line.startswith("#SBATCH")]
    assert script.count("#SBATCH") == len(lines)
    found = [re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line) for line in lines]
    return {one[1]: one[2] for one in found}


def test_a_batch_script_asks_for_what_the_run_needs(run):
    script = slurm_script(run, minutes=240, options={"partition": "gpu"})
    assert script.startswith("#!/bin/bash\n#SBATCH ")
    options = options_of(script)
    assert set(options) <= SBATCH
    assert options["nodes"] == "2" and options["ntasks-per-node"] == "1"
    assert options["gpus-per-node"] == options["cpus-per-task"] == "8"
    assert options["time"] == "240" and options["partition"] == "gpu"
    assert options["requeue"] is None  # a switch
    assert "gpus-per-node" not in options_of(slurm_script(run, minutes=1, gpus=False))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_slurms_own_client_knows_every_option(run, tmp_path):
    if shutil.which("sbatch") is None:
        pytest.skip("needs Slurm's client, sbatch")
    config = tmp_path / "slurm.conf"
    config.write_text(
        "ClusterName=none\nSlurmctldHost=localhost\nAuthType=auth/none\nMessageTimeout=1\n"
        "NodeName=localhost\nPartitionName=gpu Nodes=ALL\nGresTypes=gpu\n"
    )
    environment = {**os.environ, "SLURM_CONF": os.environ.get("SLURM_CONF", str(config))}

    def words(script: str) -> str:
        command = ["sbatch", "--test-only"]
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, env=environment, timeout=60
        )
        return done.stderr

    script = slurm_script(run, minutes=240)
    assert "option" not in words(script)  # without a controller it gets no further
    assert "unrecognized option" in words(script.replace("--nodes=", "--nods="))


def test_a_sky_task_starts_an_agent_on_every_node(run, tmp_path):
    """Its command runs in a shell with SkyPilot's variables as its documentation gives them."""
    task = sky_task(run, accelerators="A100:8")
    assert set(task) == {"name", "num_nodes", "resources", "workdir", "envs", "setup", "run"}
    assert task["num_nodes"] == 2 and task["resources"] == {"accelerators": "A100:8"}
    assert task["envs"]["NCCL_DEBUG"] == "WARN"
    assert sky_task(run, accelerators=None)["resources"] == {"cpus": "8+"}
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    place = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    done = subprocess.run(
        ["bash", "-c", task["run"]],
        cwd=tmp_path,
        env=os.environ | place,
        text=True,
        capture_output=True,
    )
    words = done.stdout.splitlines()
    assert {"--nnodes=2", "--nproc-per-node=8", "--node-rank=1", "--max-restarts=1"} <= {*words}
    assert "--master-addr=10.0.0.1" in words
    assert words[words.index("scripts/train.py") + 1 :] == to_words(run.flags)


@pytest.mark.slow
def test_a_batch_script_starts_agents_that_meet(tmp_path):
    """srun and scontrol are stood in for: two tasks on this machine. All else is the script's."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text("#!/bin/bash\necho 127.0.0.1\n")
    (tools / "srun").write_text(
        "#!/bin/bash\n"
        "while [[ $1 == --* ]]; do shift; done\n"
        'SLURM_NODEID=0 "$@" & first=$!\n'
        'SLURM_NODEID=1 "$@" && wait $first\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    nasty = 'it\'s $HOME; "two" words'
    run = describe(FAULT, nodes=2, fault="collective_of_all", out=tmp_path, more=nasty)
    script = slurm_script(run, minutes=1, gpus=False, python=sys.executable)
    facts = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
    facts |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_CPUS_PER_TASK": "1"}
    facts |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash"],
        input=script,
        capture_output=True,
        text=True,
        env={**os.environ, **facts},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2, local rank 0, sum 3" in done.stdout
    assert done.stdout.count(f"more: {nasty}") == 2


def test_a_train_job_keeps_to_its_schema(run):
    jsonschema = pytest.importorskip("jsonschema")
    job = json.loads(json.dumps(train_job(run, image="registry/train:1")))
    jsonschema.validate(job, TRAIN_JOB)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert trainer["command"][:3] == ["torchrun", "--max-restarts=1", "scripts/train.py"]
    with pytest.raises(jsonschema.ValidationError, match="'runtimeRef' is a required property"):
        jsonschema.validate(job | {"spec": {"trainer": trainer}}, TRAIN_JOB)
    wrong = {**job["spec"], "trainer": {**trainer, "nodes": 2}}
    with pytest.raises(jsonschema.ValidationError, match="'nodes' was unexpected"):
        jsonschema.validate(job | {"spec": wrong}, TRAIN_JOB)


def test_kubeflows_own_client_reads_the_train_job_whole(run):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    job = train_job(run, image="registry/train:1")
    read = models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()
    # it leaves out what it does not know, so nothing may be missing
    trainer = read["spec"]["trainer"]
    assert trainer == job["spec"]["trainer"]
    assert read["metadata"] == job["metadata"]
    assert read["spec"]["runtimeRef"]["name"] == "torch-distributed"


def test_kubernetes_variables_are_not_taken_from_flags():
    command = train_job(describe("scripts/train.py", data="$(HOME)"), image="i")["spec"]["trainer"]
    assert "$$(HOME)" in command["command"]


def estimator(run: ClusterRun) -> dict[str, Any]:
    return estimator_arguments(run, image="i", role="r", instance_type="ml.p4d.24xlarge")


@pytest.fixture
def job() -> ClusterRun:
    flags = {"model": "neox-tiny", "dp_shard": 16, "save": True, "background": False, "lr": 1e-4}
    return describe("scripts/train.py", nodes=2, nproc=8, **flags)


def test_an_estimators_arguments_are_documented_and_its_files_there(job):
    found = estimator(job)
    assert set(found) <= PYTORCH
    assert found["instance_count"] == 2 and found["instance_type"] == "ml.p4d.24xlarge"
    assert found["distribution"] == {"torch_distributed": {"enabled": True}}
    assert (Path(found["source_dir"]) / found["entry_point"]).is_file()
    assert all(Path(folder).is_dir() for folder in found["dependencies"])


def test_sagemakers_own_estimator_takes_the_arguments(job, monkeypatch):
    pytorch = pytest.importorskip("sagemaker.pytorch")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    made = pytorch.PyTorch(**estimator(job))
    assert made.distribution_configuration  # not taken for an unknown keyword


def test_hyperparameters_come_back_as_the_scripts_flags(job):
    """The job's toolkit hands each to the script as --NAME VALUE, both as text."""
    module = script("cluster/from_hyperparameters")
    given = estimator(job)["hyperparameters"] | {"at": json.dumps(["1", "2"])}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    found = module.flags(words)
    expected = to_words(job.flags | {"out": "/opt/ml/model", "at": [1, 2]})
    assert found == expected
    args = parse([word for word in found if word not in ("--at", "1", "2")])
    assert args.save is True and args.background is False and args.dp_shard == 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 0}, "nodes must be a whole number of at least 1, not 0"),
        ({"script": "none.py"}, "there is no script none.py"),
        ({"script": sys.executable}, "lies outside the project"),
        ({"nodes": 2, "nproc": 8, "tp": 4}, "the plan is for 4 ranks, but nodes x nproc is 16"),
    ],
)
def test_mistakes_are_said_before_a_job_waits_in_a_queue(options, words):
    with pytest.raises(UserError, match=words):
        describe(**{"script": "scripts/train.py", **options})


def test_what_a_cluster_cannot_do_is_refused(run):
    with pytest.raises(UserError, match="is no option that sbatch can read"):
        slurm_script(run, minutes=1, options={"comment": "two words"})
    for minutes in (0, "4h", 1.5):
        with pytest.raises(UserError, match="minutes must be a whole number of at least 1"):
            slurm_script(run, minutes=minutes)
    with pytest.raises(UserError, match="restarts must be 0"):
        estimator(run)
    with pytest.raises(UserError, match="has 8 GPUs and gets a rank on each, but nproc is 4"):
        estimator(describe("scripts/train.py", nodes=4, nproc=4, dp_shard=16))
    with pytest.raises(UserError, match=r"starts scripts/train.py, not tests/"):
        estimator(describe(FAULT))


@pytest.mark.parametrize(
    ("model", "name"),
    [("EleutherAI/gpt-neox-20b", "gpt-neox-20b"), ("7b_x", "run-7b-x"), ("é" * 50, "run")],
)
def test_names_suit_every_cluster(model, name):
    assert describe("scripts/train.py", model=model).name == name
