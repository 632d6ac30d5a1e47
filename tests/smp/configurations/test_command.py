"""python -m helpers.configurations: the table, the run's line, the planner's answer, exit codes."""

import os
import sys

import pytest

from helpers.configurations.__main__ import main
from helpers.engine.models.configurations import load_config
from tests.smp.configurations import test_megatron as megatron
from tests.support.scripts import on_a_full_disk, printed_to

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[activation_checkpoint]
mode = "full"
"""
SPEED = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'

SIZES = """
trainer: {devices: 2, num_nodes: 1}
model:
  {num_layers: 2, hidden_size: 64, num_attention_heads: 2, vocab_size: 2048,
   tensor_model_parallel_size: 1, make_vocab_size_divisible_by: 1,
   global_batch_size: 8, encoder_seq_length: 64, optim: {name: adamw, lr: 1e-4}}
"""
FSDP = "distributed_type: FSDP\nmixed_precision: bf16\n"


@pytest.fixture
def file(file):
    """As a word of the command."""
    return lambda text, name: str(file(text, name))


def test_all_that_it_says(file, capsys):
    assert main([file(TITAN, "a.toml"), "--on", "p5.48xlarge", "--nodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "a configuration of torchtitan" in said and "`training.seq_len: 8192`" in said
    assert "torchrun --nnodes 2" in said and "--nproc-per-node 8" in said
    assert "--model meta-llama/Llama-3.1-8B" in said and "--dp-shard 16" in said
    assert "as torchtitan-eager computes it" in said and "a step" in said and " to " in said


def test_without_a_model_it_says_so(file, capsys):
    assert main([file(SPEED, "ds.json"), "--ranks", "8"]) == 0
    assert "give --model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --ranks N"),
        (["--ranks", "0"], "whole number"),
        (["--ranks", "eight"], "whole number"),
        (["--ranks", "8", "--on", ""], "--on: "),
        (["--ranks", "8", "--model", ""], "--model: "),
        (["--program", "jax"], "invalid choice"),
        (["--on", "p99.large"], "p99"),
        (["--on", "p5.48xlarge"], "no estimate without a model"),
        (["--on", "p5.48xlarge", "--model", "nowhere-9b"], "nowhere-9b"),
        (["--ranks", "8", "--nodes", "3"], "3 nodes do not divide 8 ranks"),
        (["--ranks", "12", "--on", "p5.48xlarge", "--model", "gptj-6b"], "give --seq-len"),
        (["--ranks", "8", "--batch-size", "12"], "12 does not divide by 8, the plan's data ranks"),
        (["--ranks", "8", "--seq-len", "0"], "whole number"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(file, capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main([file(SPEED, "ds.json"), *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and words in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [(SPEED, "ds.json"), ('{"zero_optimization": {"stage": 2}}', "auto.json"), (FSDP, "fsdp.yaml")],
)
def test_sizes_that_a_file_leaves_open_are_given(file, capsys, text, name):
    sizes = ["--model", "llama2-7b", "--batch-size", "32", "--seq-len", "512"]
    machines = ["--on", "p4d.24xlarge", "--nodes", "2", "--ranks", "16"]
    assert main([file(text, name), *sizes, *machines]) == 0
    said = capsys.readouterr().out
    assert "--batch-size 32 --seq-len 512" in said and "tokens/s" in said


@pytest.mark.parametrize(
    ("ranks", "starts"),
    [
        ("16", "torchrun --nnodes 2 "),
        ("8", "torchrun --standalone --nproc-per-node 8 "),
        ("64", "torchrun --nnodes 8 "),
    ],
)
def test_other_ranks_than_the_files_have_other_nodes(file, capsys, ranks, starts):
    assert main([file(megatron.NEMO, "gpt.yaml"), "--ranks", ranks]) == 0
    assert starts in capsys.readouterr().out


def test_nodes_divide_the_ranks(file, capsys):
    assert main([file(SPEED, "ds.json"), "--ranks", "20"]) == 0
    assert "--nnodes 4 " in capsys.readouterr().out


def test_the_sizes_of_a_file_are_a_model_to_train(file, capsys, tmp_path):
    folder = tmp_path / "sizes"
    assert main([file(SIZES, "gpt.yaml"), "--write-config", str(folder)]) == 0
    said = capsys.readouterr()
    assert f"--model {folder} " in said.out and "WARNING" not in said.err
    assert load_config(str(folder)).model_type == "gpt2"
    for text, name, words in (
        (SIZES, "gpt.yaml", "is there already"),
        (SPEED, "ds.json", "no config.json to write"),
    ):
        with pytest.raises(SystemExit):
            main([file(text, name), "--ranks", "2", "--write-config", str(folder)])
        assert words in capsys.readouterr().err


def test_a_precision_that_the_script_decides_is_said(file, capsys):
    auto = '{"train_batch_size": 4, "bf16": {"enabled": "auto"}, "fp16": {"enabled": %s}}'
    assert main([file(auto % '"auto"', "open.json"), "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert "helpers.train takes its own: --precision fp32, --seq-len" in said
    assert main([file(auto % "true", "half.json"), "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert "--precision fp16" in said and "--precision fp32" not in said


def test_a_refusal_comes_after_the_table(file, capsys):
    text = TITAN + "[parallelism]\nexpert_parallel_degree = 4\n"
    with pytest.raises(SystemExit) as ended:
        main([file(text, "a.toml"), "--ranks", "8"])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "expert_parallel_degree" in said.out and "| refused |" in said.out
    assert said.err.startswith("error: parallelism.expert_parallel_degree: 4")


def test_no_file(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.toml")])
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("room", ["configurations", "leave"])
def test_a_report_that_cannot_be_written_is_a_line(file, room):
    given = file(SPEED, "ds.json") if room == "configurations" else file("x = 1\n", "train.py")
    words = [
        "-m",
        f"helpers.{room}",
        given,
        *(["--ranks", "8"] if room == "configurations" else []),
    ]
    said = "error: the report cannot be written: No space left on device\n"
    assert on_a_full_disk(*words) == (1, said)
    ours, theirs = os.pipe()
    os.close(ours)  # as head, which has read enough
    assert printed_to(theirs, *words) == (0, "")
    os.close(theirs)
