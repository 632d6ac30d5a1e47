"""Whose a file is, by its form as well as its keys; programs that are not read are named."""

import pytest

from helpers.configurations import read_configuration
from helpers.engine.errors import UserError

NEOX = "pipe_parallel_size: 1\nmodel_parallel_size: 1\ntrain_micro_batch_size_per_gpu: 4\n"
NEOX += "gradient_accumulation_steps: 1\nzero_optimization: {stage: 1}\nsteps_per_print: 10\n"
OF_A_SCRIPT = "deepspeed main.py --model_name_or_path facebook/opt-1.3b "
OF_A_SCRIPT += (
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 1 --deepspeed ds.json\n"
)
BRIDGE = "model: {tensor_model_parallel_size: 2, seq_length: 4096}\n"
BRIDGE += "train: {train_iters: 100, global_batch_size: 128}\n"
LITGPT = "model_name: tiny\ntrain: {lr_warmup_steps: 10, global_batch_size: 8}\n"
PRIMUS = "modules: {pre_trainer: {framework: megatron, overrides: {train_iters: 50}}}\n"
OPENRLHF = "--actor_num_nodes 1 --micro_train_batch_size 2 --zero_stage 3"
SWIFT = "megatron sft --tuner_type lora --tensor_model_parallel_size 2 --micro_batch_size 1\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("125M.yml", NEOX, "a configuration of gpt-neox, which is not read"),
        ("14M.yml", NEOX.replace("_", "-", 2), "a configuration of gpt-neox, which is not read"),
        ("tune.json", '{"pipe-parallel-size": 1, "train_batch_size": 8}', "gpt-neox"),
        ("sft.yaml", "finetuning_type: full\ngradient_accumulation_steps: 2\n", "LLaMA-Factory"),
        ("sft.json", '{"tuner_type": "lora", "gradient_accumulation_steps": 2}', "ms-swift"),
        ("run_clm.sh", OF_A_SCRIPT, "a script on transformers, which is not read: give the file"),
        ("lora.yml", "base_model: a/b\nfsdp_config: {fsdp_version: 2}\n", "axolotl"),
        ("args.yaml", "model_name_or_path: a\nfsdp_config: {x: 1}\n", "a script on transformers"),
        ("tiny.yaml", "parallelism: {dp: 2, pp: 1, tp: 2, pp_engine: 1f1b}\n", "nanotron"),
        ("llama.yaml", PRIMUS, "an experiment of Primus, which is not read: write"),
        ("bridge.yaml", BRIDGE, "a configuration of Megatron-Bridge, which is not read: write"),
        ("tiny.yaml", LITGPT, "a configuration of LitGPT, which is not read"),
        ("ppo.yaml", "actor_rollout_ref: {actor: {ppo_epochs: 1}}\n", "a configuration of verl"),
        ("ppo.sh", f"python -m ppo {OPENRLHF}\n", "a command of OpenRLHF, which is not read"),
        ("lora.sh", SWIFT, "a command or a configuration of ms-swift, which is not read"),
        ("ray.yaml", "split_dataset_ratio: 0\ntrain_iters: 120\n", "of ms-swift"),
        ("data.yaml", "_target_: a.B\ntrain_batch_size: 1\n", "is none of these"),
        ("steps.sh", "python x.py --gradient_accumulation_steps 2\n", "is none of these"),
    ],
)
def test_a_file_of_another_program(tmp_path, name, text, words):
    """All of them were called DeepSpeed's."""
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=words) as refused:
        read_configuration(path)
    assert len(str(refused.value).splitlines()) == 1


def test_it_can_be_said_whose_it_is(read):
    text = "train_micro_batch_size_per_gpu: 2\n"
    assert read(text, "ds.yaml", 8, "deepspeed").batch == 16
    with pytest.raises(UserError, match="no program 'gpt-neox'"):
        read(NEOX, "125M.yml", 8, "gpt-neox")


@pytest.mark.parametrize(
    "line",
    [
        'echo "------ DS COMMAND ------"',
        "echo --tensor-model-parallel-size 2",
        "if true; then echo --tensor-model-parallel-size 2; fi",
        "cd here && printf --tensor-model-parallel-size 2 > log",
        "cat <<EOF > x\n--tensor-model-parallel-size 4\nEOF",
        ": <<'END'\n--tensor-model-parallel-size 4\nEND",
        "usage() {\n\tcat <<-EOF\n\t--tensor-model-parallel-size 2\n\tEOF\n}",
    ],
)
def test_what_is_printed_is_no_flag(read, line):
    flags = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --micro-batch-size 1"
    found = read(f"{line}\n{flags}\necho done\n", "run.sh")
    assert found.refused == "" and found.plan.tp == 1
    piped = read(f"echo yes | {flags} --tensor-model-parallel-size 2\n", "run.sh")
    assert piped.plan.tp == 2


@pytest.mark.parametrize(
    "around",
    [
        "sbatch <<EOF\n{}\nEOF",
        "cat <<EOF | bash\n{}\nEOF",
        "cat <<A >x\n\nA\n{}",
        "cat > job.sh <<EOF\n{}\nEOF\nsbatch job.sh",
    ],
)
def test_a_text_that_a_program_runs_has_flags(read, around):
    flags = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --micro-batch-size 1"
    text = around.format(f"{flags} --tensor-model-parallel-size 2")
    assert read(f"{text}\n", "run.sh").plan.tp == 2


def test_an_arm_of_a_case_is_no_flag(read):
    flags = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --micro-batch-size 1"
    case = 'case "$1" in\n  --num-frames)\n    X=1\n    ;;\n  -n|--name) Y=2 ;;\nesac\n'
    assert read(f"{case}{flags}\n", "run.sh").refused == ""
    assert read(f"(cd a; {flags} --bf16)\n", "run.sh").refused != ""


@pytest.mark.parametrize(
    "case",
    [
        "case $SIZE in 7b) LAYERS=32 ;; 13b) LAYERS=40 ;; esac",
        "case $SIZE in\n  7b) LAYERS=32; NAME=a ;;\n  13b|'13B')\n    LAYERS=40\n    ;;\nesac",
        "case $SIZE in\n  (7b) export LAYERS=32 ;;\n  *)\n    LAYERS=40 ;;\nesac",
    ],
)
def test_what_the_arms_of_a_case_set_is_for_the_shell_to_say(read, case):
    """The second read as 40 layers: a label before an assignment hid it."""
    command = "torchrun pretrain_gpt.py --num-layers $LAYERS --micro-batch-size 1"
    found = read(f"{case}\n{command}\n", "run.sh", 8)
    assert "num-layers: '$LAYERS'" in [line.text for line in found.lines]
    assert "not in the file" in found.refused


def test_a_command_in_a_variable_counts_once_it_is_run(read):
    text = 'cmd="torchrun pretrain_gpt.py --num-layers 2 --micro-batch-size 1 --bf16"\n'
    found = read(f"{text}echo $cmd\n$cmd\n", "run.sh", 8)
    assert found.plan.precision == "bf16"
