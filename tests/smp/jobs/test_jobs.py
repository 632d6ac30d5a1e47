"""Jobs of notebooks as runs: plans, flags, machines, what is asked, what is refused."""

import re
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from helpers.engine.plan import ParallelPlan
from helpers.leave.forms import run_files, torchrun_line
from helpers.leave.report import report
from helpers.smp.leaving import leave
from helpers.train.arguments import parse

PUBLISHED = Path(__file__).parents[3] / "data/leaving"
ESTIMATOR = """
from sagemaker.pytorch import PyTorch
import argparse, os, boto3
{before}
job = PyTorch(entry_point="train.py", instance_type="ml.p4d.24xlarge", instance_count=2,
    {arguments}
)
"""
SMP = '{{"smdistributed": {{"modelparallel": {{"enabled": True, "parameters": {0}}}}}, "mpi": {1}}}'


@pytest.fixture
def read(file):
    def reading(arguments, before="", answers=None):
        return leave(
            [file(ESTIMATOR.format(before=before, arguments=arguments), "job.py")], answers
        )

    return reading


def distribution(parameters, mpi='{"enabled": True, "processes_per_host": 8}'):
    return f"distribution={SMP.format(parameters, mpi)}"


@pytest.mark.parametrize(
    ("argument", "plan"),
    [
        ('distribution={"pytorchddp": {"enabled": True}}', {"dp_replicate": 16}),
        ('distribution={"torch_distributed": {"enabled": True}}', {"dp_replicate": 16}),
        (
            'distribution={"smdistributed": {"dataparallel": {"enabled": True}}}',
            {"dp_replicate": 16},
        ),
        (
            'distribution={"mpi": {"enabled": True, "processes_per_host": 4}}',
            {"dp_replicate": 8},
        ),
        ("", {"dp_replicate": 2}),
        (
            distribution('{"tensor_parallel_degree": 8, "ddp": True}'),
            {"tp": 8, "dp_replicate": 2},
        ),
        (
            distribution('{"partitions": 4, "ddp": True, "microbatches": 8}'),
            {"pp": 4, "dp_replicate": 4, "microbatches": 8},
        ),
        (
            distribution('{"hybrid_shard_degree": 4, "tensor_parallel_degree": 2}'),
            {"tp": 2, "dp_shard": 4, "dp_replicate": 2},
        ),
    ],
)
def test_a_distribution_is_a_plan(argument, plan, read):
    [job] = read(argument).jobs
    found = job.plan.to_dict()
    assert {name: found[name] for name in plan} == plan
    assert job.plan.world_size == job.machines.ranks and not job.asked


@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("degree = 8", "degree"),
        ("h = {}\nh['tp'] = 8", "h['tp']"),
        ("h = dict(tp=4)\nh.update({'tp': 8})", "h.get('tp')"),
        ("sizes = {'large': 8}\nname = 'large'", "sizes[name]"),
        ("def of(n):\n    return n * 2", "of(4)"),
        ("p = argparse.ArgumentParser()\np.add_argument('--tp', type=int, default=8)\n"
         "args = p.parse_args()", "args.tp"),
        ("h = {'tp': 2}\nif True:\n    h['tp'] = 8", "int(h['tp'])"),
        ("tp, pp = 8, 1", "tp if pp == 1 else 1"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_literal_is_resolved_in_the_file(before, value, read):
    [job] = read(distribution(f'{{"tensor_parallel_degree": {value}, "ddp": True}}'), before).jobs
    assert (job.plan.tp, job.plan.dp_replicate) == (8, 2)


@pytest.mark.parametrize(
    ("before", "value", "name"),
    [
        ("", "os.environ['DEGREE']", "DEGREE"),
        ("", "degree", "degree"),
        ("def job(degree):\n    return degree", "job(missing)", "missing"),
        ("p = argparse.ArgumentParser()\np.add_argument('--tp', type=int)\n"
         "args = p.parse_args()\nargs.tp = unknown", "args.tp", "unknown"),
        ("if flag:\n    t = 4\nelse:\n    t = 8", "t", "t"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_in_the_file_is_asked_for_by_name(before, value, name, read):
    argument = distribution(f'{{"tensor_parallel_degree": {value}, "ddp": True}}')
    found = read(argument, before)
    assert (found.jobs[0].plan, found.asked) == (None, [name])
    assert f"--set {name}=VALUE" in report(found)
    assert read(argument, before, {name: 8}).jobs[0].plan.tp == 8


def test_what_a_configuration_cannot_keep_is_refused_with_its_reason(read):
    found = read(distribution('{"tensor_parallel_degree": 3, "ddp": True}'))
    assert found.jobs[0].plan is None and "3" in found.jobs[0].refused
    assert f"Refused: {found.jobs[0].refused}" in report(found)
    found = read(distribution('{"tensor_paralel_degree": 2}'))
    [line] = [line for line in found.lines if "paralel" in line.text]
    assert line.verdict == "refused" and "tensor_parallel_degree" in line.became


def test_each_of_mpi_s_options_is_told(read):
    mpi = (
        '{"enabled": True, "processes_per_host": 8, "custom_mpi_options": '
        '"-verbose -x NCCL_DEBUG=INFO -x SMP_DISABLE_D2D=1 --mca btl ^openib -x FI_PROVIDER=efa"}'
    )
    found = read(distribution('{"ddp": True}', mpi))
    verdicts = {line.text: line.verdict for line in found.lines if line.text.startswith("-")}
    assert verdicts == {
        "-verbose": "left out",
        "-x NCCL_DEBUG=INFO": "converted",
        "-x SMP_DISABLE_D2D=1": "left out",
        "--mca btl ^openib": "left out",
        "-x FI_PROVIDER=efa": "converted",
    }
    assert found.jobs[0].env == {"NCCL_DEBUG": "INFO", "FI_PROVIDER": "efa"}
    assert any("processes_per_host" in line.text for line in found.lines)


def test_keys_beside_a_configuration_that_were_dropped_without_a_word(read):
    found = read(
        distribution('{"ddp": True, "overlapping_allreduce": True}', "options"),
        "options = {'enabled': True, 'processes_per_host': 4}",
    )
    [line] = [line for line in found.lines if "overlapping_allreduce" in line.text]
    assert line.verdict == "left out" and line.became
    assert found.jobs[0].machines.nproc == 4


def test_the_data_rank_that_counts_tensor_ranks_is_told(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import smdistributed.modelparallel.torch as smp\nprint(smp.dp_rank())\n")
    line = leave([script]).lines[-1]
    assert "counts the tensor ranks too" in line.became and "rdp_rank" in line.became
    assert "prescaled_batch" in line.by_hand


@pytest.mark.parametrize("model", ["t5-3b", "bert-base-uncased", "roberta-large"])
def test_a_family_that_is_not_trained_here_is_named(model, read):
    found = read(f'hyperparameters={{"model_name": "{model}"}}')
    [job] = found.jobs
    assert job.family is not None and job.refused.startswith(job.family.family)
    family = re.split(r"\W|\d", model.rpartition("/")[2])[0].lower()
    assert family in job.family.family.lower()


def test_a_family_with_experts_is_trained_here(read):
    [job] = read('hyperparameters={"model_name": "mistralai/Mixtral-8x7B-v0.1"}').jobs
    assert job.family is None and job.plan is not None


def test_hyperparameters_are_flags_and_those_without_one_say_so(read):
    [job] = read(
        'hyperparameters={"learning_rate": 1e-4, "per_device_train_batch_size": 4, "bf16": True,'
        ' "max_steps": 50, "gradient_accumulation_steps": 2, "my_own": 1, "warmup_ratio": 0.1},'
        'distribution={"torch_distributed": {"enabled": True}}'
    ).jobs
    assert (
        job.run_flags()
        | {
            "lr": 1e-4,
            "batch_size": 4 * 16 * 2,
            "microbatches": 2,
            "steps": 50,
            "warmup": 5,
            "precision": "bf16",
        }
        == job.run_flags()
    )
    words = {one.name: one.words for one in job.settings}
    assert "my_own" in words and "script's own" in words["my_own"]


@pytest.mark.parametrize(
    ("script", "given", "flags"),
    [
        ("torch.optim.AdamW([], lr=3e-3, weight_decay=0.0)", "{}", (3e-3, 0.0)),
        ("torch.optim.AdamW([], lr=3e-3, weight_decay=0.0)", "{'lr': 1e-4}", (1e-4, 0.0)),
        ("torch.optim.AdamW([], lr=unknown)", "{'weight_decay': 0.2}", (None, 0.2)),
        ("TrainingArguments('out')", "{}", (5e-5, 0.0)),
        ("TrainingArguments('out', learning_rate=2e-5)", "{}", (2e-5, 0.0)),
        ("TrainingArguments('out')", "{'weight_decay': 0.1}", (5e-5, 0.1)),
        ("torch.optim.SGD([], lr=3e-3)", "{}", (None, None)),
    ],
)
def test_what_the_script_gives_its_optimizer_is_kept(script, given, flags, tmp_path):
    """helpers.train has defaults of its own, so a command without these trained otherwise."""
    lines = ("import torch", "from transformers import TrainingArguments", script)
    (tmp_path / "train.py").write_text("\n".join(lines))
    job = ESTIMATOR.format(before="", arguments=f"hyperparameters={given}")
    (tmp_path / "job.py").write_text(job)
    [found] = leave([tmp_path / "job.py", tmp_path / "train.py"]).jobs
    assert (found.flags.get("lr"), found.flags.get("weight_decay")) == flags


@pytest.mark.parametrize("order", ('"bf16": 1, "fp8": 1', '"fp8": 1, "bf16": 1'))
def test_fp8_is_for_machines_that_multiply_it(order, read, tmp_path):
    """Beside it bf16 is what all but the products are in."""
    arguments = (
        f"hyperparameters={{{order}}}, distribution={{'torch_distributed': {{'enabled': 1}}}}"
    )
    assert "A100-40 do not" in read(arguments).jobs[0].refused
    path = tmp_path / "newer.py"
    text = ESTIMATOR.format(before="", arguments=arguments)
    path.write_text(text.replace("p4d.24xlarge", "p5.48xlarge"))
    [job] = leave([path]).jobs
    assert not job.refused and job.run_flags()["precision"] == "fp8"


def test_rules_are_watched_by_those_of_ours(read):
    found = read(
        "rules=[Rule.sagemaker(rule_configs.loss_not_decreasing()), "
        "Rule.sagemaker(rule_configs.vanishing_gradient(), rule_parameters={'threshold': '1'}), "
        "Rule.sagemaker(rule_configs.confusion())], "
        "debugger_hook_config=DebuggerHookConfig(hook_parameters={'save_interval': '25'})",
        "from sagemaker.debugger import Rule, rule_configs, DebuggerHookConfig",
    )
    [job] = found.jobs
    assert [one.kinds for one in job.rules] == [("loss_not_falling",), ("vanishing_gradient",), ()]
    assert job.flags["watch"] == 25


def test_every_kind_that_a_rule_becomes_is_one_of_the_watch():
    from helpers.smp.jobs.rules import kinds_of
    from helpers.smp.reading.catalogue import catalogue

    source = "".join(
        path.read_text("utf-8")
        for path in (Path(__file__).parents[3] / "helpers/watch").rglob("*.py")
    )
    kinds = {
        kind
        for name, row in catalogue().rows.items()
        if name.startswith("rule_configs.")
        for kind in kinds_of(row.became)
    }
    assert len(kinds) > 10 and [kind for kind in sorted(kinds) if kind not in source] == []


def test_spot_machines_and_limits(read):
    [job] = read("use_spot_instances=True, max_run=7200, checkpoint_s3_uri='s3://a/b'").jobs
    assert (job.restarts, job.minutes, job.flags["resume"]) == (3, 120, "auto")


@pytest.mark.parametrize("value", ["1e400", "-1", "True", "None", "'1'", "[1]"])
def test_a_limit_that_is_none_is_left_out(value, read):
    assert read(f"max_run={value}").jobs[0].minutes is None


def test_one_call_in_a_loop_is_a_job_for_each_of_its_arguments(tmp_path):
    path = tmp_path / "jobs.py"
    path.write_text(
        "from sagemaker.pytorch import PyTorch\nfor n in (1, 2, 4):\n    PyTorch("
        "entry_point='t.py', instance_type='ml.p4d.24xlarge', instance_count=n, "
        "distribution={'pytorchddp': {'enabled': True}})\n"
    )
    assert [job.plan.dp_replicate for job in leave([path]).jobs] == [8, 16, 32]


def test_a_task_for_sky_keeps_characters_beyond_16_bits():
    """YAML reads JSON's escape of one as two halves."""
    yaml = pytest.importorskip("yaml")
    found = leave([PUBLISHED / "gptj_pipeline_job.py", PUBLISHED / "gptj_pipeline.py"])
    job = replace(found.jobs[0], env={"A": "\N{GRINNING FACE}"})
    assert yaml.safe_load(run_files(job)["sky.json"])["envs"]["A"] == job.env["A"]


def test_a_run_over_nodes_meets_at_the_first_of_them(tmp_path):
    """run.sh of a job of four machines, run by a shell: the address is asked for, and taken."""
    found = leave([PUBLISHED / "gptj_pipeline_job.py", PUBLISHED / "gptj_pipeline.py"])
    script, stand_in = tmp_path / "run.sh", tmp_path / "torchrun"
    script.write_text(run_files(found.jobs[0])["run.sh"])
    stand_in.write_text('#!/bin/sh\necho "$@"\n')
    stand_in.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    run = partial(subprocess.run, ["bash", script], capture_output=True, text=True)
    assert "HEAD: is the address of the first node" in run(env=env).stderr
    assert run(env=env).returncode != 0
    said = run(env=env | {"HEAD": "node-0"})
    assert said.returncode == 0 and said.stdout.startswith(
        "--nnodes 4 --rdzv-backend c10d --rdzv-endpoint node-0:29400 --nproc-per-node 8 -m"
    )


@pytest.mark.parametrize(
    ("name", "plan", "mistakes"),
    [
        ("gptj_tensor", ParallelPlan(tp=8, zero_stage=1, precision="fp16", activation="full"),
         {"weights never loaded", "a key twice"}),
        ("gptj_pipeline", None, {"never stepped", "steps counted twice"}),
        ("qlora", None, {"type=bool"}),
        ("compiler", None, set()),
        ("fsdp", None, set()),
    ],
)  # fmt: skip
def test_the_published_jobs(name, plan, mistakes):
    """Each is read with its script: nothing is refused or asked, its mistakes are named, and its
    command is one that helpers.train takes."""
    paths = [PUBLISHED / f"{name}_job.py"]
    found = leave([*paths, PUBLISHED / f"{name}.py"])
    assert {one.kind for one in found.mistakes} == mistakes
    assert found.jobs and not found.asked and not found.unread
    for job in found.jobs:
        words = torchrun_line(job).partition("-m helpers.train ")[2].split()
        assert not job.refused and job.plan.world_size == job.machines.ranks
        args = parse(words)
        assert args.model == job.flags["model"]
    if plan is not None:
        got = found.jobs[0].plan
        assert (got.tp, got.zero_stage, got.precision) == (plan.tp, plan.zero_stage, plan.precision)


@pytest.mark.parametrize("module", ["tensorflow", "tensorflow.estimator"])
def test_a_job_in_tensorflow_is_refused(read, module):
    """Its distribution was said to be the plan, of no run."""
    before = f"from sagemaker.{module} import TensorFlow as PyTorch"
    found = read(distribution('{"partitions": 2, "microbatches": 2}'), before)
    [job] = found.jobs
    assert job.plan is None and "take the model's PyTorch class" in job.refused


@pytest.mark.parametrize("name", ["deepspeed", "--deepspeed_config", "ds-config"])
def test_a_layout_that_deepspeeds_file_has_is_not_another(read, name):
    """It was taken for replicas, and the file for the script's own."""
    spread = "distribution={'torch_distributed': {'enabled': True}}"
    [job] = read(f"hyperparameters={{'{name}': 'ds_z3.json'}}, {spread}").jobs
    assert job.plan is None and "in DeepSpeed's ds_z3.json" in job.refused
    [job] = read(f"hyperparameters={{'{name}': False}}, {spread}").jobs
    assert job.plan is not None and job.refused == ""
