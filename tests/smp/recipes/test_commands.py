"""What is printed for a recipe is what helpers.train takes, and means the same plan there."""

import json
import shlex
from dataclasses import fields

import pytest

from helpers.configurations.reading import read_configuration
from helpers.configurations.report import torchrun_line as line_of_configuration
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import check_lr_schedule
from helpers.leave.forms import run_files, torchrun_line
from helpers.smp.leaving import leave
from helpers.train.arguments import parse
from tests.smp.recipes import texts

HF_OFFLOADED = texts.HF.replace(
    "train_batch_size: 2", "train_batch_size: 2\n  offload_activations: True"
)
ADAPTED = "peft: {peft_type: lora, alpha: 16, dropout: 0.1}\n  train_batch_size: 2"
MERGED = "max_epochs: 3\n    merge_weights: true\n    lr_warmup_ratio: 0.1"
RECIPES = {
    "hf": texts.HF,
    "hf, offloaded": HF_OFFLOADED,
    "hf, adapters": texts.HF.replace("train_batch_size: 2", ADAPTED),
    "fine-tuning, adapters": texts.FINE_TUNING,
    "fine-tuning, merged": texts.FINE_TUNING.replace("max_epochs: 3", MERGED),
    "fine-tuning, whole": texts.FULL,
    "nemo": texts.NEMO,
    "nemo, pretraining": texts.PRETRAINING,
}


def checked(line):
    """The arguments of a command line, as helpers.train parses and checks them."""
    words = shlex.split(line)
    args = parse(words[words.index("helpers.train") + 1 :])
    given = {one.name: getattr(args, one.name) for one in fields(ParallelPlan)}
    check_lr_schedule(args.lr_schedule, args.warmup, args.steps or 10**6)
    return args, ParallelPlan(**given)


@pytest.mark.parametrize("text", RECIPES.values(), ids=RECIPES)
def test_the_command_of_a_recipe_is_one_that_the_trainer_takes(text, write):
    path = write(text, "recipe.yaml")
    [job] = leave([path], {"instance_type": "p5.48xlarge", "lora_rank": 8}).jobs
    args, plan = checked(torchrun_line(job))
    assert plan == job.plan
    assert {k: v for k, v in vars(args).items() if k in job.flags and k != "track"} == {
        k: v for k, v in job.flags.items() if k != "track"
    }
    for name, form in run_files(job).items():
        assert not name.endswith(".refused"), form


@pytest.mark.parametrize("text", RECIPES.values(), ids=RECIPES)
def test_the_command_of_a_configuration_is_so_too(text, write):
    found = read_configuration(write(text, "recipe.yaml"))
    if found.plan is None:
        assert "lora_rank" in found.refused and found.asked == ("lora_rank",)
        return
    assert checked(line_of_configuration(found))[1] == found.plan


def test_forms_for_clusters_ask_for_gpus_though_nobody_says_which(write):
    [job] = leave([write(texts.NEMO, "nemo.yaml")]).jobs
    files = run_files(job)
    assert "gpus-per-node=8" in files["slurm.sh"]
    assert "nvidia.com/gpu" in json.dumps(json.loads(files["trainjob.json"]))
    assert "--set instance_type=NAME" in files["sky.json.refused"]
