"""Small files of each program through the command: helpers.train takes the line that it prints."""

import shlex
from dataclasses import fields

import pytest

from helpers.configurations.__main__ import main
from helpers.engine.plan import ParallelPlan
from helpers.train.arguments import parse
from helpers.train.job import prepare
from tests.smp.configurations import test_finetuning as finetuning
from tests.smp.configurations import test_megatron as megatron
from tests.smp.configurations import test_silent as silent

SPEED = """{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
 "zero_optimization": {"stage": 2}, "bf16": {"enabled": true}, "gradient_clipping": 0.5,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_max_lr": 1e-4}}}"""
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
global_batch_size = 32
seq_len = 64
steps = 3
compile = false
[parallelism]
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 1
[activation_checkpoint]
mode = "full"
"""
ACCELERATE = "distributed_type: {kind}\nnum_processes: 8\nnum_machines: 1\nmixed_precision: bf16\n"
FLAGS = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 2 --seq-length 64 \\
 --micro-batch-size 1 --global-batch-size 16 --lr 1e-4 --train-iters 5 --lr-warmup-fraction 0.2 \\
 --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --bf16 --clip-grad 0
"""
FILES = {
    "speed.json": SPEED,
    "open.json": '{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}',
    "own.json": '{"train_batch_size": 16, "optimizer": {"type": "Adam"}, "fp16": {"enabled": 1}}',
    "titan.toml": TITAN,
    "titan_old.toml": TITAN.replace("llama3", "llama").replace("8B", "7B"),
    "multi.yaml": ACCELERATE.format(kind="MULTI_GPU"),
    "fsdp.yaml": ACCELERATE.format(kind="FSDP")
    + "fsdp_config: {fsdp_reshard_after_forward: false}\n",
    "deepspeed.yaml": ACCELERATE.format(kind="DEEPSPEED") + "deepspeed_config: {zero_stage: 1}\n",
    "flags.sh": FLAGS,
    "gpt.yaml": silent.NEMO.replace("NAME", "adamw"),
    "nemo.yaml": megatron.NEMO.replace("num_nodes: 2", "num_nodes: 1").replace("2048", "64"),
    "sft.yaml": finetuning.SFT.replace("4096", "64"),
    "big.sh": megatron.SCRIPT,
}


def line_of(name, tmp_path, capsys, monkeypatch):
    """The words after helpers.train that the command prints for a file and a model's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(FILES[name], "utf-8")
    ranks = [] if name.endswith((".sh", ".yaml")) else ["--ranks", "8"]
    assert main([name, "--model", "llama-tiny", *ranks]) == 0
    line = next(one for one in capsys.readouterr().out.splitlines() if "helpers.train --" in one)
    return shlex.split(line.partition("helpers.train ")[2])


@pytest.mark.parametrize("name", FILES)
def test_the_line_is_one_of_helpers_train(name, tmp_path, capsys, monkeypatch):
    """Its parser takes the line, and its checks the plan, the model, the task and the data."""
    args = parse(line_of(name, tmp_path, capsys, monkeypatch))
    plan = ParallelPlan(**{field.name: getattr(args, field.name) for field in fields(ParallelPlan)})
    monkeypatch.setenv("WORLD_SIZE", str(plan.world_size))
    assert args.data == "DATA" and args.model == "llama-tiny"
    args.data = None  # the bundled texts of the task
    args.seq_len = min(args.seq_len, 64)
    job = prepare(args)
    assert job.plan == plan and job.steps >= 1
    assert args.batch_size % plan.dp == 0
