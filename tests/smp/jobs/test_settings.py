"""Hyperparameters that hold only beside others: they are asked for, or said not to be held."""

import shlex

import pytest

from helpers.leave.forms import torchrun_line
from helpers.leave.report import report
from helpers.smp.leaving import leave
from helpers.train.arguments import parse

JOB = """from sagemaker.pytorch import PyTorch
PyTorch(entry_point="train.py", instance_type="{instance}", instance_count=1,
        hyperparameters={given}, distribution={distribution})
"""
TORCH = {"torch_distributed": {"enabled": True}}


@pytest.fixture
def read(file):
    def reading(given, answers=None, instance="ml.p4d.24xlarge", distribution=TORCH):
        text = JOB.format(given=given, instance=instance, distribution=distribution)
        return leave([file(text, "job.py")], answers)

    return reading


def test_a_warm_up_s_share_of_steps_that_are_not_known_is_said_not_to_be_held(read):
    [job] = read({"warmup_ratio": 0.1, "epochs": 3}).jobs
    [row] = [row for row in job.settings if row.name == "warmup_ratio"]
    assert row.words == "not held, as the steps are not known: give --warmup N, 0.1 of them"
    assert row.given is None and "warmup" not in job.flags
    [job] = read({"warmup_ratio": 0.1, "max_steps": 50}).jobs
    [row] = [row for row in job.settings if row.name == "warmup_ratio"]
    assert row.words == "--warmup: this share of the steps" and job.flags["warmup"] == 5
    assert read({"warmup_ratio": 0.0, "epochs": 3}).jobs[0].flags["warmup"] == 0


@pytest.mark.parametrize("given", [{"merge_weights": True}, {"load_in_4bit": True}])
def test_adapters_whose_rank_the_files_do_not_say_are_asked_for_it(given, read):
    """The line was one that helpers.train refuses, or trained the whole model."""
    found = read(given)
    assert found.jobs[0].plan is None and found.asked == ["lora_rank"]
    assert "torchrun -" not in report(found)
    [job] = read(given, {"lora_rank": 8}).jobs
    words = shlex.split(torchrun_line(job))
    assert parse(words[words.index("helpers.train") + 1 :]).lora_rank == 8
    assert read({**given, "lora_r": 4}).jobs[0].flags["lora_rank"] == 4
    assert read(dict.fromkeys(given, False)).jobs[0].plan is not None


def test_a_limit_of_0_is_one_that_no_norm_reaches(read):
    """It was --clip 0, which helpers.train does not take."""
    [job] = read({"max_grad_norm": 0}).jobs
    words = shlex.split(torchrun_line(job))
    assert parse(words[words.index("helpers.train") + 1 :]).clip == 1e9


def test_a_number_beyond_all_floats_is_none(read):
    """It was an OverflowError."""
    [job] = read({"epochs": 10**400}).jobs
    [row] = job.settings
    assert row.words.endswith("is no count") and "epochs" not in job.flags


@pytest.mark.parametrize("argument", ["action=['store_true']", "dest=['epochs']"])
def test_an_argument_of_a_script_that_has_a_list_for_a_word_is_read_past(argument, file):
    """It was a TypeError: no list is a key."""
    script = file(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--lr', type=float, default=0.5, {argument})\n"
        "args = parser.parse_args()\n",
        "train.py",
    )
    job = file(JOB.format(given={}, instance="ml.p4d.24xlarge", distribution=TORCH), "job.py")
    assert leave([job, script]).jobs[0].flags["lr"] == 0.5


@pytest.mark.parametrize(
    ("instance", "distribution", "words"),
    [
        ("ml.p4d.24xlarge", TORCH, "on 1 x p4d.24xlarge, 8 ranks each"),
        ("ml.p4d.24xlarge", {}, "on 1 x p4d.24xlarge, 8 ranks each"),
        ("ml.p4d.24xlarge", None, "on 1 x p4d.24xlarge, 1 rank each"),
        ("ml.m5.xlarge", TORCH, "on 1 x a machine without GPUs, 1 rank each"),
        ("ml.p99.large", TORCH, "on 1 x a machine with GPUs, 4 ranks each"),
    ],
)
def test_the_machines_in_words(instance, distribution, words, read):
    answers = {"processes_per_host": 4} if "p99" in instance else None
    assert words in report(read({}, answers, instance, distribution))
