"""Fine-tunings begin with a trained model and have rows of their data's length; other tasks are
refused."""

import pytest

from helpers.configurations import torchrun_line

SFT = """
trainer: {devices: 8, num_nodes: 1, precision: bf16, max_steps: 100, gradient_clip_val: 1.0}
model:
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 1
  global_batch_size: 32
  micro_batch_size: 4
  restore_from_path: ???
  answer_only_loss: True
  data:
    train_ds:
      file_names: [train.jsonl]
      global_batch_size: ${fine_tuning.model.global_batch_size}
      micro_batch_size: ${model.micro_batch_size}
      max_seq_length: 4096
      prompt_template: "{input} {output}"
  optim: {name: mcore_distributed_optim, lr: 1e-6, weight_decay: 0.1, betas: [0.9, 0.95]}
"""
LAUNCH = "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --tensor-model-parallel-size 1 "
LAUNCH += "--num-layers 2 --micro-batch-size 1 --train-iters 5"


def test_a_fine_tuning_begins_with_a_trained_model(read):
    """It was a run from random weights, of rows of 128 tokens of plain text."""
    found = read(SFT, "squad.yaml")
    words = torchrun_line(found)
    assert "--from-scratch" not in words
    assert "--seq-len 4096" in words and "--task instruct" in words
    assert (found.batch, found.plan.microbatches) == (32, 0)


def test_the_launcher_s_references_are_followed(read):
    text = SFT.replace("max_seq_length: 4096", "max_seq_length: ${peft.model.encoder_seq_length}")
    text = text.replace("  micro_batch_size: 4", "  micro_batch_size: 4\n  encoder_seq_length: 512")
    found = read(text, "squad.yaml")
    assert found.seq_len == 512
    other = read(SFT.replace("${fine_tuning.model.global_batch_size}", "64"), "squad.yaml")
    assert "one thing in two ways" in other.refused


def test_rows_are_as_long_as_the_data_s(read):
    text = SFT.replace("  micro_batch_size: 4", "  micro_batch_size: 4\n  encoder_seq_length: 1024")
    found = read(text, "sft.yaml")
    assert found.seq_len == 4096 and any("a seq_length of 1024" in one for one in found.lost)


def test_what_a_fine_tuning_has_otherwise_is_said(read):
    found = read(SFT.replace("answer_only_loss: True", "answer_only_loss: False"), "sft.yaml")
    lost = {line.text.partition(":")[0]: line.lost for line in found.lines if line.lost}
    assert lost["model.answer_only_loss"] == "False"
    assert lost["model.data.train_ds.prompt_template"] == "{input} {output}"


@pytest.mark.parametrize(
    ("text", "name", "scratch"),
    [
        (SFT.replace("path: ???", "path: null").replace("file_names", "names"), "gpt.yaml", True),
        (LAUNCH + " --load checkpoints", "pretrain.sh", True),
        (LAUNCH + " --load checkpoints --finetune", "tune.sh", False),
        (LAUNCH + " --pretrained-checkpoint base", "tune.sh", False),
        ('[training]\nseq_len = 64\n[checkpoint]\nfolder = "c"\n', "titan.toml", True),
        ('[training]\nseq_len = 64\n[checkpoint]\ninitial_load_path = "c"\n', "on.toml", False),
    ],
)
def test_weights_are_random_where_none_are_given(read, text, name, scratch):
    found = read(text, name, 8)
    assert ("--from-scratch" in torchrun_line(found)) == scratch == found.from_scratch


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("train_ds: {src_file_name: '???', max_src_seq_length: 512}", "encoder and decoder"),
        ("train_ds: {file_names: '???', max_src_seq_length: 512}", "encoder and decoder"),
        ("train_ds: {task_name: mnli, max_seq_length: 512}", "encoder and decoder"),
        ("validation_ds: {task_name: mnli, max_seq_length: 512}", "encoder and decoder"),
        ("train_ds: {file_name: '???', seq_length: 128, neighbors: 20}", "neighbours"),
    ],
)
def test_other_tasks_are_refused(read, key, words):
    head, _, tail = SFT.partition("  data:\n")
    text = f"{head}  data:\n    {key}\n  optim:{tail.partition('  optim:')[2]}"
    found = read(text, "t5.yaml")
    assert found.plan is None and words in found.refused


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("tools/run_text_generation_server.py", "starts no training"),
        ("../../tools/run_mamba_text_generation_server.py", "starts no training"),
        ("generate_samples_gpt.py", "starts no training"),
        ("pretrain_bert.py", "another kind"),
        ("$HERE/pretrain_t5.py", "another kind"),
        ("pretrain_vlm.py", "another kind"),
    ],
)
def test_a_script_s_name_says_what_it_trains(read, script, words):
    """Serving and BERT were runs of a causal model from random weights."""
    found = read(LAUNCH.replace("pretrain_gpt.py", script), "run.sh")
    assert found.plan is None and words in found.refused
    assert read(LAUNCH.replace("pretrain_gpt.py", "train_my_own.py"), "run.sh").plan is not None
