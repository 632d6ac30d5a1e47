"""Recipes as plans and flags: a line for each key, and in one line why one is no run."""

import pytest

from helpers.engine.errors import UserError
from helpers.leave.report import words_of_price
from helpers.smp.leaving import leave
from helpers.smp.recipes.recipe import read_recipe
from tests.smp.recipes.texts import FINE_TUNING, HF, NEMO


def test_a_recipe_is_a_plan_with_its_flags_and_machines(write):
    job = read_recipe(write(HF)).job
    plan = job.plan
    assert (plan.tp, plan.dp_shard, plan.dp_replicate, plan.world_size) == (2, 8, 2, 32)
    assert (plan.precision, plan.activation) == ("bf16", "full")
    assert (job.machines.instance, job.machines.nodes, job.machines.nproc) == ("p4d.24xlarge", 4, 8)
    assert job.minutes == 26 * 60 + 30
    assert (
        job.flags
        | {
            "steps": 50,
            "batch_size": 2 * plan.dp,
            "seq_len": 4096,
            "lr": 1e-4,
            "from_scratch": True,
            "track": "tensorboard",
            "checkpoint_every": 10,
        }
        == job.flags
    )
    config = job.config
    assert (config.hidden_size, config.max_position_embeddings) == (512, 4096)
    assert config.rms_norm_eps == 1e-5
    assert words_of_price(job).startswith("fits")


def test_every_key_of_a_recipe_is_a_line(write):
    path = write(HF)
    wanted = {
        number
        for number, line in enumerate(HF.splitlines(), 1)
        if ":" in line and line.partition(":")[2].strip()
    }
    found = leave([path])
    assert {line.place.line for line in found.lines} == wanted
    [new] = [line for line in found.lines if "something_new" in line.text]
    assert new.verdict != "converted" and new.became


def test_fine_tuning_with_adapters_in_four_bits(write):
    job = read_recipe(write(FINE_TUNING, "tuned.yaml")).job
    assert (job.flags["lora_rank"], job.flags["quantize"]) == (16, "nf4")
    assert (job.flags["task"], job.flags["batch_size"], job.flags["seq_len"]) == (
        "instruct",
        32,
        2048,
    )
    assert not job.refused and job.plan.world_size == 8


def test_a_recipe_of_megatron_s_strategy(write):
    job = read_recipe(write(NEMO, "nemo.yaml"), {"instance_type": "p4d.24xlarge"}).job
    plan = job.plan
    assert (plan.tp, plan.pp, plan.dp, plan.zero_stage) == (4, 2, 2, 1)
    assert plan.sequence_parallel and job.flags["batch_size"] == 64


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model_type: hf", "model_type: neuron-hf", "Trainium"),
        ("model_type: hf", "model_type: verl", "reinforcement"),
        ("accelerator: gpu", "accelerator: neuron", "GPUs and CPUs"),
        ("tensor_model_parallel_degree: 2", "tensor_model_parallel_degree: 3", "3"),
    ],
)
def test_a_recipe_for_something_else_says_so(old, new, words, write):
    job = read_recipe(write(HF.replace(old, new))).job
    assert job.plan is None and words in job.refused


P5 = "hf_llama3_8b_seq4k_gpu_p5x4_pretrain.yaml"


@pytest.mark.parametrize("place", ("before", "after"))
def test_fp8_is_the_plan_s_precision_wherever_it_stands(place, write):
    """The other key says what all else is in, and may come first or last."""
    keys = ["precision: bf16", "fp8: True"]
    keys = reversed(keys) if place == "before" else keys
    text = HF.replace("model_type: llama_v3", "\n  ".join(("model_type: llama_v3", *keys)))
    path = write(text, P5)
    job = read_recipe(path).job
    assert job.plan.precision == job.run_flags()["precision"] == "fp8"
    assert words_of_price(job).startswith("fits")
    [line] = [line for line in leave([path]).lines if line.text.startswith("model.fp8")]
    assert (line.verdict, line.became) == ("converted", "precision=fp8")


@pytest.mark.parametrize("extra", ("fp8: False", "fp8: True\n  peft: {peft_type: lora, rank: 8}"))
def test_fp8_that_is_off_or_beside_adapters_is_bf16(extra, write):
    text = HF.replace("model_type: llama_v3", f"model_type: llama_v3\n  {extra}")
    assert read_recipe(write(text, P5)).job.plan.precision == "bf16"


def test_fp8_on_gpus_without_such_products_is_refused(write):
    text = HF.replace("model_type: llama_v3", "model_type: llama_v3\n  fp8: True")
    job = read_recipe(write(text)).job
    assert job.plan is None and "p4d.24xlarge's A100-40 do not" in job.refused


def test_micro_batches_and_accumulated_ones(write):
    answers = {"instance_type": "p4d.24xlarge"}
    micro = NEMO.replace("seq_length: 2048", "seq_length: 2048, micro_batch_size: 4")
    job = read_recipe(write(micro, "nemo.yaml"), answers).job
    assert (job.plan.microbatches, job.flags["batch_size"]) == (64 // (2 * 4), 64)
    job = read_recipe(write(micro.replace("size: 4}", "size: 5}"), "nemo.yaml"), answers).job
    assert job.plan is None and "do not divide a batch of 64" in job.refused
    text = HF.replace("max_steps: 50", "max_steps: 50\n  accumulate_grad_batches: 3")
    job = read_recipe(write(text)).job
    assert (job.plan.microbatches, job.flags["batch_size"]) == (3, 3 * 2 * job.plan.dp)


@pytest.mark.parametrize("value", ["0", "-2", "true", "abc", "1.5", "[1]"])
def test_a_size_that_is_none_is_refused_on_its_line(value, write):
    text = HF.replace("train_batch_size: 2", f"train_batch_size: {value}")
    found = leave([write(text)])
    [line] = [line for line in found.lines if "train_batch_size" in line.text]
    assert line.verdict == "refused" and "batch_size" not in found.jobs[0].flags


def test_what_a_recipe_lacks_is_asked_for(write):
    job = read_recipe(write(HF.replace("  num_nodes: 4\n", ""), "no_name.yaml")).job
    assert job.asked == ["num_nodes"]
    answers = {"num_nodes": 2, "instance_type": "p5.48xlarge"}
    job = read_recipe(write(HF.replace("  num_nodes: 4\n", ""), "no_name.yaml"), answers).job
    assert job.plan.world_size == 16 and job.machines.instance == "p5.48xlarge"


def test_a_launcher_s_configuration_names_its_recipe(write):
    write(HF, "recipes/training/llama/hf_llama.yaml")
    text = "defaults:\n- recipes: training/llama/hf_llama\ninstance_type: p5.48xlarge\n"
    job = read_recipe(write(text, "config.yaml")).job
    assert (job.plan.tp, job.machines.instance) == (2, "p5.48xlarge")
    with pytest.raises(UserError, match="names the recipe elsewhere"):
        read_recipe(write("defaults:\n- recipes: elsewhere\n", "config.yaml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no keys"),
        ("- a\n- b\n", "no keys"),
        ("a: [1\n", "no YAML"),
        ("a: 1\nb: 2\n", "no recipe: it has neither"),
        ("run: {model_type: hf}\nrun: {model_type: hf}\n", "twice"),
        ("a: !!python/object/apply:os.system ['true']\n", "no YAML"),
        ("? [1, 2]\n: 3\n", "no name"),
        ("a: " + "{b: " * 2000 + "1" + "}" * 2000, "no YAML|nested"),
        ("a: ${b}\nb: ${a}\nrun:\n  model_type: ${a}\n", None),
        ("a: x\n" + "#" * 2**21, "larger than any recipe"),
        ("\n".join(f"k{n}: 1" for n in range(6000)), "more keys"),
    ],
    ids=range(11),
)
def test_nonsense_is_one_line(text, words, write):
    path = write(text, "bad.yaml")
    if words is None:  # references in a circle stay as they are
        assert read_recipe(path).job.plan is None
        return
    with pytest.raises(UserError, match=words) as refused:
        leave([path])
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "old", "new", "words"),
    [
        (FINE_TUNING, "run:", "defaults: [/hydra/verl/default, _self_]\nrun:", "in other files"),
        (FINE_TUNING, "qlora_4bit", "dora", "dora is no way to adapt"),
        (FINE_TUNING, "trainer_type: sft", "trainer_type: kto", "kto is not here"),
        (HF, "parallel_degree: 2", "parallel_degree: x", "'x' is no degree"),
        (HF, "precision: bf16", "precision: fp4", "'fp4' is not here"),
        (HF, "train_batch_size: 2", "train_batch_size: -2", "-2 is not a whole number"),
        (NEMO, "sequence_parallel: True", "virtual_pipeline_model_parallel_size: x", "'x' is no"),
        (NEMO, "data:", "model: {peft: {peft_scheme: lora}}\ndata:", "trains adapters"),
        (
            NEMO,
            "sequence_parallel: True",
            "num_distributed_optimizer_instances: 3",
            "do not divide",
        ),
    ],
)
def test_a_key_that_cannot_be_kept_refuses_the_recipe(text, old, new, words, write):
    """Each was a line that said so, beside a plan without it."""
    path = write(text.replace(old, new, 1))
    job = read_recipe(path, {"instance_type": "p4d.24xlarge"}).job
    assert job.plan is None and words in job.refused


def test_what_megatron_s_strategy_recomputes_and_shares(write):
    more = "num_distributed_optimizer_instances: 2\n  sequence_parallel: True"
    text = NEMO.replace("sequence_parallel: True", more)
    text += "model: {config: {recompute_granularity: selective, recompute_modules: [mlp]}}\n"
    plan = read_recipe(write(text, "nemo.yaml"), {"instance_type": "p4d.24xlarge"}).job.plan
    assert (plan.dp_replicate, plan.dp_shard, plan.zero_stage) == (2, 1, 1)
    assert plan.activation == "selective"
