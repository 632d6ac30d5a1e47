"""What is handed to the writers of jobs: it arrives as it is, or is refused in one line."""

import json
import re
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.engine.errors import UserError
from helpers.lab.cluster.described_run import ClusterRun, describe
from helpers.lab.cluster.kubeflow import train_job
from helpers.lab.cluster.sagemaker import estimator_arguments
from helpers.lab.cluster.skypilot import sky_task
from helpers.lab.cluster.slurm import slurm_script

NASTY = ("it's", 'a "b" c', "$HOME", "$$", "$(HOME)", "$$(HOME)", "`x`", "é", "a\\b", "")
NASTY += ("\N{GRINNING FACE}",)  # of which JSON in ASCII makes two halves


@pytest.fixture
def run() -> ClusterRun:
    return describe("scripts/train.py", nodes=2, nproc=8, dp_shard=16)


def training(**given) -> ClusterRun:
    return describe("scripts/train.py", **given)


def made_by_kubernetes(text: str, known: dict[str, str]) -> str:
    """As its documentation of commands and variables has it: $$ is $, $(NAME) a known variable."""
    found = re.compile(r"\$\$|\$\(([^)]*)\)")
    return found.sub(lambda at: known.get(at[1], at[0]) if at[1] is not None else "$", text)


@pytest.mark.parametrize("text", NASTY)
def test_variables_and_flags_arrive_as_they_are(text):
    run = training(env={"HOME": "/h", "A": text}, data=text or "x")
    script = slurm_script(run, minutes=1)
    exports = re.search(r"(?s)^export.*?(?=^head=)", script, re.MULTILINE)[0]
    shown = subprocess.run(
        ["bash", "-euc", f'{exports}\nprintf %s "$A"'], capture_output=True, check=True
    )
    assert shown.stdout.decode() == text
    trainer = train_job(run, image="i")["spec"]["trainer"]
    known = {"HOME": "/h"}
    values = {one["name"]: made_by_kubernetes(one["value"], known) for one in trainer["env"]}
    assert values == run.env
    assert [made_by_kubernetes(word, known) for word in trainer["command"][2:]] == run.words
    yaml = pytest.importorskip("yaml")
    task = sky_task(run, accelerators=None)
    assert yaml.safe_load(json.dumps(task, ensure_ascii=False)) == task


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nodes": 10**5000}, "nodes must be at most 65000"),
        ({"threads": 10**9}, "threads must be at most 65000"),
        ({"script": None}, "script is None: give the name"),
        ({"out": True}, "out is True: give the name of a folder"),
        ({"out": ""}, "out is '': give the name of a folder"),
        ({"env": "A=b"}, "env is 'A=b': give variables"),
        ({"env": {"A B": "x"}}, "env has 'A B', which is no variable that a shell can export"),
        ({"env": {"A;echo": "x"}}, "env has 'A;echo', which is no variable"),
        ({"env": {"UID": "1"}}, "env has 'UID', which is no variable"),
        ({"env": {"A": None}}, "env has A = None: give a text or a number"),
        ({"env": {"A": "\0"}}, "that no command line can carry"),
        ({"env": {"OMP_NUM_THREADS": "4,2"}}, "OMP_NUM_THREADS is '4,2': give a whole number"),
        ({"data": "\ud800"}, "that no command line can carry"),
        ({"data": b"x"}, "data is a bytes, which no flag can carry"),
        ({"data": torch.tensor(1)}, "data is a Tensor, which no flag can carry"),
        ({"data": torch.ones(2)}, "data is a Tensor, which no flag can carry"),
        ({"data": [["a"]]}, "data is a list, which no flag can carry"),
        ({"a b": 1}, "'a b' is no name of a flag"),
        ({"stesp": 5}, "unrecognized arguments: --stesp 5"),
        ({"steps": -1}, "argument --steps"),
        ({"help": True}, "help is no flag of a run"),
    ],
)
def test_what_no_job_can_carry_is_refused(given, words):
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        describe(**{"script": "scripts/train.py", **given})
    assert len(str(caught.value)) < 200


def test_a_flag_that_is_none_is_left_out():
    assert training(tp=None, model=None).flags == {"out": "runs/train"}


@pytest.mark.parametrize(
    "write",
    [
        lambda run: slurm_script(run, minutes=1),
        lambda run: train_job(run, image="i"),
        lambda run: sky_task(run, accelerators=None),
        lambda run: estimator_arguments(run, image="i", role="r", instance_type="p4d.24xlarge"),
    ],
)
@pytest.mark.parametrize("other", [None, "run", {}])
def test_a_run_is_what_describe_returns(write, other):
    with pytest.raises(UserError, match="give what describe"):
        write(other)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        # what Slurm's own sbatch makes of these: unmatched quotes, ab, a, and no limit at all
        ({"options": {"comment": "it's"}}, "is no option that sbatch can read"),
        ({"options": {"comment": "a\\b"}}, "is no option that sbatch can read"),
        ({"options": {"comment": "a#b"}}, "is no option that sbatch can read"),
        ({"options": {"partition": ""}}, "is no option that sbatch can read"),
        ({"options": {"exclusive": None}}, "is no option that sbatch can read"),
        ({"options": {3: "x"}}, "is no option that sbatch can read"),
        ({"options": "partition=gpu"}, "give them by name"),
        ({"options": {"nodes": 3}}, "--nodes follows from the run"),
        ({"options": {"ntasks-per-node": 8}}, "--ntasks-per-node follows from the run"),
        ({"minutes": 10**30}, "minutes must be at most"),
        ({"python": ""}, "give the path of an interpreter"),
        ({"python": "~/bin/python"}, "give the path of an interpreter"),
    ],
)
def test_what_sbatch_reads_otherwise_is_refused(run, given, words):
    with pytest.raises(UserError, match=words):
        slurm_script(run, **{"minutes": 1} | given)


def test_a_switch_a_path_and_more_cpus_for_slurm(run):
    options = {"exclusive": True, "cpus-per-task": 12}
    script = slurm_script(run, minutes=1, options=options, python=Path("/my bin/python"))
    assert "#SBATCH --exclusive\n" in script and "#SBATCH --cpus-per-task=12\n" in script
    assert "agent '/my bin/python'" in script
    many = describe("scripts/train.py", nodes=2, nproc=8, dp_shard=16, threads=10_000)
    with pytest.raises(UserError, match="80000 CPUs a node"):
        slurm_script(many, minutes=1)


@pytest.mark.parametrize(
    "given",
    [
        {"image": ""},
        {"image": None},
        {"image": "a b"},
        {"namespace": "Team_A"},
        {"namespace": "team.a"},
        {"namespace": None},
        {"runtime": "x" * 64},
    ],
)
def test_names_that_kubernetes_does_not_take(run, given):
    with pytest.raises(UserError, match=f"{next(iter(given))} is "):
        train_job(run, **{"image": "i"} | given)


def test_kubeflow_tells_torchrun_itself():
    with pytest.raises(UserError, match="PET_NNODES in env is told by Kubeflow itself"):
        train_job(training(env={"PET_NNODES": "3"}), image="i")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A100:4", "A100:4 gives a node 4 for a rank each, but nproc is 8"),
        ("A100", "A100 gives a node 1 for a rank each, but nproc is 8"),
        *(
            (text, f"accelerators is {re.escape(repr(text))}: write a kind and a number")
            for text in ("", 3, {"A100": 8}, "A100:8.0", "A100: 8", " ")
        ),
    ],
)
def test_accelerators_are_one_a_rank(run, text, words):
    with pytest.raises(UserError, match=words):
        sky_task(run, accelerators=text)


def test_a_task_without_a_number_and_without_a_setup():
    one = training()
    assert sky_task(one, accelerators="A100")["resources"] == {"accelerators": "A100"}
    with pytest.raises(UserError, match="setup is None"):
        sky_task(one, accelerators=None, setup=None)


def estimator(**flags):
    run = describe("scripts/train.py", nproc=8, dp_shard=8, **flags)
    return estimator_arguments(run, image="i", role="r", instance_type="p4d.24xlarge")


def test_hyperparameters_are_of_pythons_own_types():
    found = estimator(steps=np.int64(3), lr=np.float64(0.5), clip=Fraction(1, 1))["hyperparameters"]
    assert json.loads(json.dumps(found)) == found
    assert (str(found["steps"]), str(found["lr"]), found["clip"]) == ("3", "0.5", "1")


@pytest.mark.parametrize("text", ["[a", "True", "a/" * 1300])
def test_texts_that_a_job_takes_for_something_else(text):
    with pytest.raises(UserError, match=r"data (is|has)"):
        estimator(data=text)


def test_a_sagemaker_job_ends_within_28_days(run):
    given = {"image": "i", "role": "a role", "instance_type": "p4d.24xlarge"}
    assert estimator_arguments(run, minutes=28 * 1440, **given)["max_run"] == 28 * 86400
    for wrong in ({"minutes": 28 * 1440 + 1}, {"role": None}, {"image": ""}):
        with pytest.raises(UserError, match=f"^{next(iter(wrong))} (is|must be) "):
            estimator_arguments(run, **given | wrong)
