"""Keys whose values are easily taken for another: each is kept, or its line says that it is not."""

import pytest

from helpers.leave.report import report
from helpers.smp.leaving import leave
from helpers.smp.recipes.recipe import read_recipe
from tests.smp.recipes.texts import FINE_TUNING, FULL, HF, NEMO, PRETRAINING

P5 = {"instance_type": "p5.48xlarge"}


def line_of(path, key):
    [line] = [line for line in read_recipe(path, P5).lines if line.text.startswith(f"{key}:")]
    return line


@pytest.mark.parametrize(("value", "offload"), [("True", True), ("False", False)])
def test_offloading_is_no_degree(value, offload, write):
    """True is 1, and a degree of 1 is as without it."""
    path = write(
        HF.replace("train_batch_size", f"offload_activations: {value}\n  train_batch_size")
    )
    line = line_of(path, "model.offload_activations")
    assert (line.verdict, line.became) == (
        ("converted", "offload") if offload else ("left out", "off")
    )
    job = read_recipe(path).job
    assert job.plan.offload is job.run_flags().get("offload", False) is offload


@pytest.mark.parametrize("key", ["offload_activations", "tensor_model_parallel_degree"])
def test_neither_true_nor_a_degree_is_refused(key, write):
    value = "1" if key == "offload_activations" else "True"
    text = HF.replace("  tensor_model_parallel_degree: 2\n", "")
    path = write(text.replace("train_batch_size", f"{key}: {value}\n  train_batch_size"))
    job = read_recipe(path).job
    assert job.plan is None and f"model.{key}: {value}" in job.refused


def test_a_warm_up_s_share_is_of_the_steps_where_they_are_known(write):
    path = write(FULL, "whole.yaml")
    line = line_of(path, "training_config.training_args.lr_warmup_ratio")
    assert line.verdict == "left out" and line.by_hand == "give --warmup N, 0.1 of the run's steps"
    assert "warmup" not in read_recipe(path, P5).job.flags
    steps = "trainer: {devices: 8, num_nodes: 1, max_steps: 400}"
    for before in (True, False):  # the other key may come first or last
        text = FULL.replace("trainer: {devices: 8, num_nodes: 1}\n", "" if before else f"{steps}\n")
        path = write(f"{text}{steps}\n" if before else text, "whole.yaml")
        line = line_of(path, "training_config.training_args.lr_warmup_ratio")
        assert (line.verdict, line.became, line.by_hand) == ("converted", "--warmup 40", "")
        assert read_recipe(path, P5).job.flags["warmup"] == 40
    zero = write(FULL.replace("ratio: 0.1", "ratio: 0"), "whole.yaml")
    assert read_recipe(zero, P5).job.flags["warmup"] == 0
    more = write(FULL.replace("ratio: 0.1", "ratio: 2"), "whole.yaml")
    assert "a part of the steps" in read_recipe(more, P5).job.refused


def test_a_limit_of_0_is_one_that_no_norm_reaches(write):
    path = write(HF.replace("train_batch_size", "grad_clip: 0.0\n  train_batch_size"))
    line = line_of(path, "model.grad_clip")
    assert (line.verdict, line.became) == ("converted", "off: --clip 1e+09, and no norm is larger")
    assert read_recipe(path).job.flags["clip"] == 1e9


def test_without_adapters_nothing_is_merged_into_the_model(write):
    path = write(FULL, "whole.yaml")
    line = line_of(path, "training_config.training_args.merge_weights")
    assert (line.verdict, line.became) == ("left out", "no adapters are trained")
    flags = read_recipe(path, P5).job.flags
    assert "merge" not in flags and flags["save"] is True
    adapted = FINE_TUNING.replace("max_epochs: 3", "max_epochs: 3\n    merge_weights: true")
    assert read_recipe(write(adapted, "tuned.yaml")).job.flags["merge"] is True


@pytest.mark.parametrize(("value", "flag"), [("false", False), ("true", None)])
def test_rows_that_are_not_packed_are_asked_for(value, flag, write):
    path = write(FULL.replace("packing_samples: false", f"packing_samples: {value}"), "whole.yaml")
    assert read_recipe(path, P5).job.flags.get("pack") is flag
    line = line_of(path, "training_config.training_args.packing_samples")
    assert (line.verdict, line.became) == ("converted", "--pack" if flag is None else "--no-pack")


LORA = HF.replace("train_batch_size", "peft: {peft_type: lora}\n  fp8: True\n  train_batch_size")
OF_LLAMA = FINE_TUNING.replace("r: 16, ", "")


@pytest.mark.parametrize(
    ("text", "name"), [(LORA, "hf_llama3_8b_seq4k_gpu_p5x4_lora.yaml"), (OF_LLAMA, "tuned.yaml")]
)
def test_adapters_without_a_rank_are_asked_for_it(text, name, write):
    """They were no adapters: all of the model was trained, in the precision of adapters."""
    path = write(text, name)
    found = leave([path])
    assert (found.jobs[0].plan, found.asked) == (None, ["lora_rank"])
    assert "--set lora_rank=VALUE" in report(found) and "helpers.train" not in report(found)
    [line] = [one for one in found.lines if "peft_type" in one.text]
    assert line.by_hand == "its rank is not in the file: --set lora_rank=N"
    job = leave([path], {"lora_rank": 8}).jobs[0]
    assert job.flags["lora_rank"] == 8 and not job.asked and job.plan.precision != "fp8"
    for answer in (0, True, "many"):
        assert leave([path], {"lora_rank": answer}).asked == ["lora_rank"]


def test_a_rank_beside_no_kind_of_adapters_is_none(write):
    none = LORA.replace("{peft_type: lora}", "{peft_type: null, rank: 32, alpha: 16}")
    job = read_recipe(write(none, "hf_llama3_8b_seq4k_gpu_p5x4_lora.yaml")).job
    assert not job.flags.keys() & {"lora_rank", "lora_alpha"} and job.plan.precision == "fp8"
    silent = LORA.replace("{peft_type: lora}", "{rank: 32}")
    assert read_recipe(write(silent)).job.flags["lora_rank"] == 32


def test_a_pretraining_of_nemo_keeps_its_schedule_and_begins_at_random(write):
    job = read_recipe(write(PRETRAINING, "checkpointless.yaml"), P5).job
    wanted = {"lr_schedule": "cosine", "warmup": 100, "checkpoint_every": 20, "keep": 3}
    assert job.flags | wanted | {"from_scratch": True} == job.flags
    assert job.plan.precision == "bf16"
    line = line_of(write(PRETRAINING, "checkpointless.yaml"), "optim.config.bf16")
    assert line.became == "precision=bf16"
    half = PRETRAINING.replace("bf16: true, fp16: false", "bf16: false, fp16: true")
    half = half.replace(", precision: bf16-mixed", "")
    assert read_recipe(write(half, "half.yaml"), P5).job.plan.precision == "fp16"


def test_weights_that_nemo_restores_are_no_random_ones(write):
    text = f"{PRETRAINING}resume: {{restore_config: {{path: null}}}}\n"
    assert "from_scratch" not in read_recipe(write(text, "tuned.yaml"), P5).job.flags


def test_a_schedule_that_is_not_here_says_what_to_give(write):
    text = PRETRAINING.replace("CosineAnnealingScheduler", "NoamAnnealingScheduler")
    line = line_of(write(text, "noam.yaml"), "optim.lr_scheduler._target_")
    assert line.verdict == "left out" and line.by_hand == "give --lr-schedule"
    assert "NoamAnnealing: there is constant, linear, cosine" in line.became


def test_machines_of_a_recipe_have_gpus_though_nobody_says_which(write):
    text = report(leave([write(NEMO, "nemo.yaml")]))
    assert "on 2 x a machine with GPUs, 8 ranks each" in text


@pytest.mark.parametrize("text", [FINE_TUNING, FULL])
def test_a_precision_that_no_key_says_is_told(text, write):
    """It was fp32, of which the report said nothing."""
    recipe = read_recipe(write(text, "tuned.yaml"), P5)
    [line] = [line for line in recipe.lines if line.became == "precision=fp32"]
    assert recipe.job.plan.precision == "fp32" and "--precision bf16" in line.by_hand
    assert not [line for line in read_recipe(write(HF)).lines if "(no precision)" in line.text]
