"""Where a file is silent its program's own values hold, or its script's; both are said."""

import json

import pytest

from helpers.configurations.keys import Key, defaults
from helpers.configurations.reading import LAYOUTS
from helpers.configurations.report import report

ADAM = {"optimizer": {"type": "Adam", "params": {"lr": 1e-4}}}
NEMO = """
trainer: {devices: 8, num_nodes: 1, precision: bf16}
model:
  tensor_model_parallel_size: 1
  global_batch_size: 8
  optim: {name: NAME, lr: 1e-4}
"""


def speed(read, ranks=8, **more):
    return read(json.dumps({"train_micro_batch_size_per_gpu": 2, **more}), "ds.json", ranks)


def scheduled(read, kind, params, lr=1e-4):
    optimizer = {"type": "Adam", "params": {"lr": lr}}
    return speed(read, optimizer=optimizer, scheduler={"type": kind, "params": params})


def of(found, key):
    return next(line for line in found.lines if line.text.startswith(f"{key}:"))


def test_deepspeed_s_own(read):
    """helpers.train clipped at 1, decayed by 0.01 and let the learning rate fall."""
    found = speed(read, **ADAM)
    want = {"clip": 1e9, "weight_decay": 0.0, "lr_schedule": "constant"}
    assert want.items() <= found.flags.items()
    said = report(found)
    assert "gradient_clipping = 0" in said and "scheduler.type = none" in said
    assert "optimizer.params.betas is not said, and is [0.9, 0.999] there" in said


def test_an_optimizer_of_the_script_is_the_script_s(read):
    found = speed(read)
    assert not {"lr", "weight_decay", "lr_schedule"} & set(found.flags)
    said = report(found).partition("The script decides")[2].partition("Plan:")[0]
    for flag in ("--seq-len 128", "--lr 0.001", "--weight-decay 0.01", "--lr-schedule linear"):
        assert flag in said
    assert "--batch-size" not in said


def test_a_trainer_that_fills_values_in_brings_its_schedule(read):
    params = {"lr": "auto", "weight_decay": "auto"}
    found = speed(read, optimizer={"type": "AdamW", "params": params}, gradient_clipping="auto")
    assert not {"lr", "weight_decay", "lr_schedule", "clip"} & set(found.flags)
    assert "scheduler.type" not in " ".join(found.silent)


def test_two_files_say_what_holds_together(read, tmp_path):
    """DeepSpeed's own file beside accelerate's: DeepSpeed's values, and the script's schedule."""
    (tmp_path / "ds.json").write_text(json.dumps(ADAM), "utf-8")
    text = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
    found = read(text + "deepspeed_config: {deepspeed_config_file: ds.json}\n", "a.yaml")
    assert (found.flags["clip"], found.flags["weight_decay"]) == (1e9, 0.0)
    assert "lr_schedule" not in found.flags and found.plan.reduce_dtype == "bf16"


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR"])
def test_a_schedule_s_rate_goes_before_the_optimizer_s(read, kind):
    params = {"warmup_max_lr": 1e-5, "warmup_num_steps": 10, "total_num_steps": 50}
    found = scheduled(read, kind, params, lr=1e-3)
    assert found.flags["lr"] == 1e-5
    line = of(found, "optimizer.params.lr")
    assert line.verdict == "left out" and "warmup_max_lr in its place" in line.became
    same = scheduled(read, kind, params, lr=1e-5)
    assert of(same, "optimizer.params.lr").verdict == "converted"


def test_a_schedule_without_a_rate(read):
    """WarmupDecayLR has its own, whatever the optimizer says; WarmupLR takes the optimizer's."""
    decay = scheduled(read, "WarmupDecayLR", {"total_num_steps": 50})
    assert decay.flags["lr"] == 1e-3 and of(decay, "optimizer.params.lr").verdict == "left out"
    assert decay.flags["warmup"] == 1000  # DeepSpeed's own
    assert any("warmup_type" in one for one in decay.lost)  # a logarithm there
    plain = scheduled(read, "WarmupLR", {"warmup_num_steps": 5, "warmup_type": "linear"})
    assert plain.flags["lr"] == 1e-4 and not any("warmup_type" in one for one in plain.lost)
    assert any("0.001 before 0.17.2" in one for one in plain.silent)
    filled = scheduled(read, "WarmupDecayLR", {"warmup_max_lr": "auto", "total_num_steps": "auto"})
    assert filled.flags["lr"] == 1e-4


def test_a_cosine_has_no_rate_of_its_own(read):
    found = scheduled(read, "WarmupCosineLR", {"warmup_max_lr": 1e-5, "total_num_steps": 9})
    assert found.plan is None and "WarmupCosineLR has no such key" in found.refused
    found = scheduled(read, "WarmupCosineLR", {"warmup_num_steps": 2, "total_num_steps": 9})
    assert (found.flags["lr"], found.flags["lr_schedule"]) == (1e-4, "cosine")


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_deepspeed_sends_gradients_as_they_are(read, half):
    found = speed(read, **{half: {"enabled": True}}, gradient_accumulation_steps=2)
    assert found.plan.reduce_dtype == half
    assert f"communication_data_type = {half}" in found.silent
    assert any("data_types.grad_accum_dtype" in one for one in found.lost)
    said = {half: {"enabled": True}, "communication_data_type": "fp32"}
    said["data_types"] = {"grad_accum_dtype": "fp32"}
    found = speed(read, **said, gradient_accumulation_steps=2)
    assert found.plan.reduce_dtype == "fp32" and not found.lost
    assert speed(read, 1, **{half: {"enabled": True}}).plan.reduce_dtype == "fp32"


@pytest.mark.parametrize(
    ("kind", "precision", "want"),
    [
        ("FSDP", "bf16", "bf16"),
        ("FSDP", "fp16", "fp16"),
        ("FSDP", "fp8", "bf16"),
        ("FSDP", "no", "fp32"),
        ("MULTI_GPU", "bf16", "fp32"),
        ("DEEPSPEED", "bf16", "bf16"),
    ],
)
def test_accelerate_s_sums(read, kind, precision, want):
    text = f"distributed_type: {kind}\nnum_processes: 8\nmixed_precision: '{precision}'\n"
    assert read(text, "a.yaml").plan.reduce_dtype == want


@pytest.mark.parametrize(
    ("name", "decay"), [("fused_adam", 0.0), ("adamw", 0.01), ("distributed_fused_adam", 0.0)]
)
def test_nemo_s_own(read, name, decay):
    found = read(NEMO.replace("NAME", name), "gpt.yaml")
    want = {"clip": 1e9, "weight_decay": decay, "lr_schedule": "constant", "optimizer": "adamw"}
    assert want.items() <= found.flags.items()
    assert f"model.optim.weight_decay = {decay:g}" in " ".join(found.silent)
    said = NEMO.replace("NAME", name).replace("lr: 1e-4", "lr: 1e-4, weight_decay: 0.3")
    assert read(said, "gpt.yaml").flags["weight_decay"] == 0.3


def test_megatron_s_own(read):
    text = (
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --micro-batch-size 1 --lr 1e-4"
    )
    found = read(text, "run.sh", 8)
    assert found.flags["lr_schedule"] == "linear" and found.flags["weight_decay"] == 0.01
    assert any("adam-beta2 is not said, and is 0.999 there" in one for one in found.lost)


def test_what_a_file_says_is_not_said_again(read):
    found = read("[training]\nseq_len = 64\nsteps = 5\n[optimizer]\nlr = 1e-4\n", "t.toml", 8)
    names = " ".join(found.silent)
    assert "training.steps" not in names and "optimizer.lr =" not in names
    assert "optimizer.weight_decay = 0.1" in names


@pytest.mark.parametrize("program", sorted(LAYOUTS))
def test_a_program_s_own_values_are_of_keys_that_take_them(program):
    known = {row.key for row in defaults(program)}
    for row in defaults(program):
        assert isinstance(row, Key) and (row.to or row.how == "same")
    assert len(known) == len(defaults(program))
