"""Megatron-LM's flags in scripts, and NeMo 1's configurations."""

import pytest

from helpers.configurations.report import report

SCRIPT = """#!/bin/bash
# --tensor-model-parallel-size 64 is what a comment says
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
TP=4
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --position-embedding-type rope --swiglu --normalization RMSNorm
    --untie-embeddings-and-output-weights --rotary-base 500000
    --vocab-size 128256 --max-position-embeddings 8192 --seq-length 8192
)
TRAINING="--micro-batch-size 1 \\
 --global-batch-size 64 --lr 3e-4 --bf16 --train-iters 500"
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py "${MODEL_ARGS[@]}" $TRAINING \\
    --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer 2>&1 | tee log
"""
NEMO = """
name: gpt
trainer: {devices: 8, num_nodes: 2, precision: bf16, max_steps: 100}
model:
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  micro_batch_size: 1
  global_batch_size: 16
  encoder_seq_length: 2048
  sequence_parallel: True
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 2
  optim: {name: fused_adam, lr: '1e-4'}
"""


def test_a_script(read):
    found = read(SCRIPT, "train.sh")
    assert found.refused == ""
    plan = found.plan
    assert (plan.world_size, plan.tp, plan.dp_shard, plan.zero) == (16, 4, 4, 1)
    assert plan.sequence_parallel and plan.precision == "bf16" and plan.microbatches == 16
    assert (found.batch, found.seq_len, found.nodes) == (64, 8192, 2)
    assert (found.flags["lr"], found.flags["steps"]) == (3e-4, 500)
    assert found.model.model_type == "llama" and found.model.num_key_value_heads == 8
    assert found.model.vocab_size == 128512  # made up to a multiple of 128 x 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("TP=4", "", "its value is $TP, not in the file"),
        ("--bf16", "--bf16 --num-experts 8", "experts"),
        ("--bf16", "--bf16 --expert-tensor-parallel-size 2", "experts have no tp of their own"),
        ("--bf16", "--bf16 --rampup-batch-size 16 16 1000", "one size"),
        ("--bf16", "--bf16 --tensor-model-paralel-size 2", "no key tensor-model-paralel-size"),
        ("--bf16", "--bf16 ${EXTRA_ARGS}", "its flags are not in the file"),
        ("--bf16", "--bf16 --fp16", "exclude each other"),
        ("TP=4", "if [ $1 ]; then\nTP=4\nelse\nTP=2\nfi", "its value is $TP, not in the file"),
        ("--bf16", "--bf16 --lr 1e-4", "one thing in two ways"),
        ("TP=4", "TP=3", "does not divide 16 ranks"),
        ("--global-batch-size 64", "--global-batch-size 63", "63 does not divide by 4"),
    ],
)
def test_refusals_name_their_flag(read, old, new, words):
    found = read(SCRIPT.replace(old, new), "train.sh")
    assert found.plan is None and words in found.refused


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--bf16", "--bf16 --grpo-group-size 8", "reinforcement learning"),
        ("$TRAINING", "$TRAINING $MORE", "its flags are not in the file"),
        ("NNODES=${NNODES:-2}", "NNODES=$SLURM_NNODES", "how many ranks"),
        ("TP=4", "TP=4\nif [ $BIG ]; then TP=8; fi", "its value is $TP, not in the file"),
        ("TP=4", "TP=4\n[ -n $BIG ] && TP=8", "its value is $TP, not in the file"),
    ],
)
def test_what_only_the_shell_knows_is_asked_for(read, old, new, words):
    """Flags that hold under a condition, and nodes that the queue says, were taken as they came."""
    more = 'MORE=""\nif [ "$AC" = full ]; then\n  MORE="$MORE --recompute-granularity full"\nfi\n'
    found = read(more + SCRIPT.replace(old, new), "train.sh")
    assert found.plan is None and words in found.refused
    assert read(more + SCRIPT.replace("NNODES:-2", "NNODES:-4"), "train.sh").plan.world_size == 32


@pytest.mark.parametrize(
    ("old", "new", "kv_heads", "ffn"),
    [
        ("--num-query-groups 8", "", 1, 14336),
        ("--group-query-attention", "", 32, 14336),
        ("--ffn-hidden-size 14336", "", 8, 10880),
    ],
)
def test_sizes_that_megatron_has_of_its_own(read, old, new, kv_heads, ffn):
    """One group beside the switch alone, none without it, 8/3 of the width in swiglu."""
    model = read(SCRIPT.replace(old, new), "train.sh").model
    assert (model.num_key_value_heads, model.intermediate_size) == (kv_heads, ffn)


@pytest.mark.parametrize(
    "flag", ["--add-qkv-bias", "--qk-layernorm", "--use-rope-scaling", "--rotary-percent 0.5"]
)
def test_a_model_of_another_form_is_not_made_a_llama(read, flag):
    found = read(SCRIPT.replace("--swiglu", f"--swiglu {flag}"), "train.sh")
    assert found.model is None and "neither GPT-2's nor Llama's" in found.lacks


def test_a_model_has_the_numbers_of_its_file(read):
    """Its norms' epsilon, biases, dropout and first weights were those of transformers."""
    found = read(SCRIPT, "train.sh")
    model = found.model
    assert (model.rms_norm_eps, model.attention_dropout, model.initializer_range) == (
        1e-5,
        0.1,
        0.02,
    )
    assert model.attention_bias and model.mlp_bias
    assert any("hidden dropout of 0.1" in one for one in found.lost)
    said = "--swiglu --disable-bias-linear --hidden-dropout 0 --attention-dropout 0.0 "
    said += "--norm-epsilon 1e-6 --init-method-std 0.01"
    found = read(SCRIPT.replace("--swiglu", said), "train.sh")
    model = found.model
    assert (model.rms_norm_eps, model.attention_dropout, model.initializer_range) == (1e-6, 0, 0.01)
    assert not model.attention_bias and not model.mlp_bias
    assert not any("hidden dropout" in one for one in found.lost)


def test_a_gpt_has_its_file_s_dropout(read):
    text = """torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --bf16 \\
    --num-attention-heads 4 --vocab-size 256 --max-position-embeddings 64 --seq-length 64 \\
    --micro-batch-size 1 --hidden-dropout 0.0 --attention-dropout 0.05
    """
    model = read(text, "gpt.sh").model
    assert (model.resid_pdrop, model.embd_pdrop, model.attn_pdrop) == (0, 0, 0.05)
    assert read(text.replace("--bf16", "--disable-bias-linear"), "gpt.sh").model is None


def test_one_block_of_each_stage_is_not_all_of_them(read):
    flags = "--recompute-granularity full --recompute-method block --recompute-num-layers 1"
    found = read(SCRIPT.replace("--bf16", f"--bf16 {flags}"), "train.sh")
    assert found.plan.activation == "full" and "1 blocks of each stage alone" in found.lost[0]


def test_a_warm_up_in_samples(read):
    found = read(SCRIPT.replace("--bf16", "--bf16 --lr-warmup-samples 640"), "train.sh")
    assert found.flags["warmup"] == 640 // 64


@pytest.mark.parametrize("name", ["distributed_fused_adam", "mcore_distributed_optim"])
def test_nemo_s_optimizers_that_share_their_state(read, name):
    text = NEMO.replace("fused_adam", name).replace("optim: {", "optim: {grad_sync_dtype: bf16, ")
    found = read(text, "megatron_gpt_config.yaml")
    plan = found.plan
    assert (plan.dp_shard, plan.dp_replicate, plan.zero_stage) == (2, 1, 1)
    assert plan.reduce_dtype == "bf16" and found.flags["optimizer"] == "adamw"
    assert read(NEMO, "megatron_gpt_config.yaml").plan.dp_replicate == 2


def test_nemo(read):
    found = read(NEMO, "megatron_gpt_config.yaml")
    assert found.refused == "" and found.program == "nemo"
    plan = found.plan
    assert (plan.tp, plan.pp, plan.dp, plan.schedule, plan.virtual_stages) == (
        4,
        2,
        2,
        "interleaved",
        2,
    )
    assert (plan.activation, plan.microbatches, found.batch) == ("group_2", 8, 16)
    assert found.model is None and found.flags["lr"] == 1e-4


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("sched: {name: CosineAnnealing, min_lr: 1e-5}", "model.optim.sched.min_lr"),
        ("sched: {name: CosineAnnealing, constant_steps: 50}", "model.optim.sched.constant_steps"),
        ("eps: 1e-6", "model.optim.eps"),
    ],
)
def test_what_nemo_s_optimizer_says_more_is_lost_by_its_name(read, said, key):
    found = read(NEMO.replace("lr: '1e-4'", f"lr: '1e-4', {said}"), "gpt.yaml")
    assert next(one for one in found.lines if one.text.startswith(key)).lost


def test_nemo_s_warm_up_is_a_share_of_its_schedule_s_steps(read):
    sched = "sched: {name: CosineAnnealing, warmup_ratio: 0.1, max_steps: 50}"
    found = read(NEMO.replace("lr: '1e-4'", f"lr: '1e-4', {sched}"), "gpt.yaml")
    assert found.flags["warmup"] == 5
    assert any("over 50 steps there, and over 100 here" in one for one in found.lost)


def test_nemo_ends_at_what_comes_first(read):
    both = NEMO.replace("max_steps: 100", "max_steps: 100, max_epochs: 3")
    assert any("ends after 3 epochs there" in one for one in read(both, "gpt.yaml").lost)
    alone = NEMO.replace("max_steps: 100", "max_steps: 100, max_epochs: -1")
    assert not any("epochs" in one for one in read(alone, "gpt.yaml").lost)


@pytest.mark.parametrize("four", ["${multiply:4, 64}", "${multiply:4, ${.hidden_size}}"])
def test_a_product_of_nemo_s_launcher(read, four):
    sizes = "hidden_size: 64\n  num_layers: 2\n  num_attention_heads: 4\n  vocab_size: 256\n"
    sizes += f"  max_position_embeddings: 64\n  ffn_hidden_size: {four}\n"
    text = NEMO.replace("  micro_batch_size", f"  {sizes}  micro_batch_size")
    text = text.replace("virtual_pipeline_model_parallel_size: 2", "bias: true")
    text = text.replace("pipeline_model_parallel_size: 2", "pipeline_model_parallel_size: 1")
    found = read(text, "gpt.yaml")
    assert found.refused == "" and found.model.n_inner == 256


@pytest.mark.parametrize(
    ("line", "tp"),
    [
        (': "${TP:=4}"', 4),
        (": ${TP:=4}", 4),
        ('if [ $BIG ]; then\n  : "${TP:=8}"\nelse\n  : "${TP:=4}"\nfi', None),
    ],
)
def test_a_variable_that_is_given_unless_it_has_a_value(read, line, tp):
    found = read(SCRIPT.replace("TP=4", line), "train.sh")
    assert (found.plan.tp if found.plan else None) == tp


@pytest.mark.parametrize(
    ("flags", "zero", "silent"),
    [
        ("--data-parallel-sharding-strategy optim_grads_params", 1, False),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", 2, False),
        ("--use-megatron-fsdp", 3, True),
        ("--use-torch-fsdp2", 3, False),
    ],
)
def test_a_sharding_strategy_is_of_megatron_s_fsdp_alone(read, flags, zero, silent):
    found = read(SCRIPT.replace("--bf16", f"--bf16 {flags}"), "train.sh")
    assert found.plan.zero == zero
    assert any("no_shard before 2026-04" in one for one in found.silent) == silent


def test_dropout_is_said_where_the_model_is_not_known(read):
    text = SCRIPT.replace("--vocab-size 128256", "")
    assert any("dropout of 0.1" in one for one in read(text, "train.sh").lost)
    none = text.replace("--bf16", "--bf16 --hidden-dropout 0 --attention-dropout 0")
    for whole in (none, text.replace("--bf16", "--bf16 --finetune")):
        assert not any("dropout" in one for one in read(whole, "train.sh").lost)


def test_megatron_deepspeed_is_called_by_its_name(read):
    found = read(SCRIPT.replace("--bf16", "--bf16 --deepspeed --zero-stage 1"), "train.sh")
    assert "it is Megatron-DeepSpeed" in found.refused


def test_nemo_s_words_of_experts_mean_nothing_in_a_dense_model(read):
    more = "model:\n  moe_grouped_gemm: true\n  moe_aux_loss_coeff: 0.01\n"
    assert read(NEMO.replace("model:\n", more), "gpt.yaml").refused == ""
    found = read(NEMO.replace("model:\n", f"{more}  num_moe_experts: 8\n"), "gpt.yaml")
    assert found.refused.startswith("model.num_moe_experts: 8")


def test_a_recipe_is_read_by_the_room_of_recipes(read):
    text = "run: {name: a, model_type: hf}\ntrainer: {devices: 8, num_nodes: 1}\n"
    found = read(text + "model: {train_batch_size: 1, shard_degree: 8}\n", "r.yaml")
    assert found.program == "hyperpod" and found.plan.world_size == 8


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--vocab-size 128256", "", "but for its vocabulary, which its tokenizer has"),
        ("--vocab-size 128256", "--tokenizer-type GPT2BPETokenizer", ""),
        ("--num-layers 32", "--vocab-size 128256", "but for its layers"),
        ("--normalization RMSNorm", "", "its form is neither GPT-2's nor Llama's"),
    ],
)
def test_what_of_the_sizes_is_missing_is_said(read, old, new, words):
    found = read(SCRIPT.replace(old, new), "train.sh")
    assert bool(found.lacks) == bool(words) == (found.model is None)
    assert words in found.lacks and found.lacks in report(found)
    assert "no model's sizes" not in report(found)


def test_without_any_size_there_are_none(read):
    assert "The file has no model's sizes: give --model" in report(read(NEMO, "gpt.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--train-iters 500", "--lr-warmup-fraction 0.1", "lr-warmup-fraction 0.1"),
        ("--train-iters 500", "--lr-warmup-fraction 0.1 --train-iters 500", ""),
        ("--train-iters 500", "--lr-warmup-fraction 0.1 --train-samples 6400", ""),
        ("--micro-batch-size 1", "--lr-warmup-samples 640", ""),
    ],
)
def test_a_warm_up_that_is_not_held_is_said(read, old, new, words):
    found = read(SCRIPT.replace(old, new), "train.sh")
    told = [one for one in found.lost if "lr-warmup" in one]
    assert len(told) == bool(words) and ("warmup" in found.flags) != bool(words)
    assert all(words in one for one in told)


@pytest.mark.parametrize(
    ("flags", "warmup", "falls"),
    [
        ("--lr-decay-iters 320", 32, "over 320 steps there, and over 500 here"),
        ("--lr-decay-iters 320 --lr-decay-style constant", 32, ""),
        ("--lr-decay-samples 19200", 30, "over 300 steps there"),
        ("--lr-decay-iters 500", 50, ""),
    ],
)
def test_a_warm_up_is_a_share_of_the_steps_in_which_the_rate_falls(read, flags, warmup, falls):
    """It was a share of all steps, and a rate that falls in fewer was not said."""
    more = f"--bf16 --lr-warmup-fraction 0.1 {flags}"
    found = read(SCRIPT.replace("--bf16", more), "train.sh")
    assert found.flags["warmup"] == warmup
    told = [one for one in found.lost if "falls over" in one]
    assert len(told) == bool(falls) and all(falls in one for one in told)


@pytest.mark.parametrize(
    "flag",
    ["min-lr 1e-5", "lr-warmup-init 1e-6", "weight-decay-incr-style linear", "eod-mask-loss"],
)
def test_a_flag_that_changes_the_losses_is_lost_by_its_name(read, flag):
    found = read(SCRIPT.replace("--bf16", f"--bf16 --{flag}"), "train.sh")
    line = next(one for one in found.lines if one.text.startswith(flag.split()[0]))
    assert line.lost and found.plan is not None


def test_samples_without_a_batch_are_said(read):
    text = SCRIPT.replace("--global-batch-size 64", "").replace("--micro-batch-size 1", "")
    found = read(text.replace("--train-iters 500", "--train-samples 6400"), "train.sh")
    assert any("says no batch" in one for one in found.lost) and "steps" not in found.flags
