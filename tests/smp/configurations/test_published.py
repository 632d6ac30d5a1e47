"""Published runs, their settings written as their own program's file: layouts come out equal."""

from dataclasses import replace

import pytest

from helpers.planner.published.runs import all_runs, runs
from helpers.planner.shape.families import model_shape

BY_TITLE = {run.title: run for run in runs()}
GPT = """torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py \\
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size {pp} \\
  --num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} \\
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size {micro} \\
  --global-batch-size {batch} --tokenizer-type GPT2BPETokenizer --fp16 \\
  {more}
"""
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
PART = "--recompute-activations --sequence-parallel"
SIZES = {
    "22B": {"pp": 1, "layers": 48, "hidden": 6144, "heads": 64, "micro": 4, "batch": 4},
    "175B": {"pp": 8, "layers": 96, "hidden": 12288, "heads": 96, "micro": 1, "batch": 64},
    "530B": {"pp": 35, "layers": 105, "hidden": 20480, "heads": 128, "micro": 1, "batch": 280},
    "1T": {"pp": 64, "layers": 128, "hidden": 25600, "heads": 160, "micro": 1, "batch": 512},
}
EACH = {"175B": 4, "530B": 1}  # layers of a virtual stage
TITAN = """
[model]
name = "llama3"
flavor = "{flavor}"
[training]
local_batch_size = {local}
seq_len = 8192
compile = {compiles}
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = {tp}
[activation_checkpoint]
mode = "{mode}"
selective_ac_option = "op"
"""


def same(found, run):
    """Equal but for compiling, which the published rows have in the program's name."""
    rows = run.batch // run.parallel_plan.dp
    plan = replace(found.plan, compile=False, microbatches=found.plan.microbatches_of(rows))
    assert plan == replace(run.parallel_plan, microbatches=run.parallel_plan.microbatches_of(rows))
    assert (found.batch, found.seq_len) == (run.batch, run.seq_len)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["full", "selective"])
def test_megatrons_table_of_2022(read, size, kind):
    run = BY_TITLE[f"{size}, {kind}"]
    more = FULL if kind == "full" else PART
    if size in EACH:
        more += f" --num-layers-per-virtual-pipeline-stage {EACH[size]}"
    text = GPT.format(**SIZES[size], nodes=SIZES[size]["pp"], more=more)
    found = read(text, "run.sh")
    assert not found.refused
    same(found, run)
    assert model_shape(found.model).vocab == run.shape.vocab
    assert model_shape(found.model).block_parameters == run.shape.block_parameters


def titan_runs():
    """Those in 16 bits: its file names no converter to 8."""
    rows = [run for run in all_runs() if run.source == "torchtitan"]
    return [run for run in rows if run.parallel_plan.precision == "bf16"]


def megatron_runs():
    """Of arXiv 2104.04473, table 1: those whose replicas are whole."""
    rows = [run for run in all_runs() if run.source == "narayanan-2021"]
    return [run for run in rows if run.parallel_plan.dp_shard == 1]


@pytest.mark.parametrize("run", megatron_runs(), ids=lambda run: run.layout)
def test_megatrons_table_of_2021(read, run):
    plan = run.parallel_plan
    sizes = {"layers": run.layers, "hidden": run.hidden, "heads": run.heads, "pp": plan.pp}
    rows = run.batch // plan.dp
    sizes |= {"micro": rows // plan.microbatches_of(rows), "batch": run.batch}
    more = FULL
    if plan.virtual_stages:
        more += f" --num-virtual-stages-per-pipeline-rank {plan.virtual_stages}"
    text = GPT.replace("parallel-size 8 ", f"parallel-size {plan.tp} ", 1)
    text = text.format(**sizes, nodes=plan.world_size // 8, more=more)
    found = read(text, "run.sh")
    assert not found.refused
    same(found, run)


def test_there_are_enough_published_runs():
    assert len(titan_runs()) >= 4 and len(megatron_runs()) >= 8


@pytest.mark.parametrize("run", titan_runs(), ids=lambda run: run.name)
def test_torchtitans_own_tables(read, run):
    flavor = {4096: "8B", 8192: "70B"}[run.shape.hidden]
    compiles = not run.program.endswith("-eager")
    text = TITAN.format(
        flavor=flavor,
        local=run.batch // run.parallel_plan.dp,
        compiles=str(compiles).lower(),
        tp=run.parallel_plan.tp,
        mode=run.parallel_plan.activation,
    )
    found = read(text, "run.toml", run.parallel_plan.world_size)
    same(found, run)
    assert found.planner == run.program.removesuffix("-2024")  # as torchtitan is today
    ours = model_shape(found.model)
    assert (ours.block_parameters, ours.vocab) == (run.shape.block_parameters, run.shape.vocab)
