"""Mistakes in what train.py is given: exit code 2, one line, and nothing written."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.context.attention import WAYS
from helpers.engine.context.balance import SPLITS
from helpers.engine.pipeline.schedules import SCHEDULES
from helpers.engine.plan import PRECISIONS, ParallelPlan
from helpers.lab.launch.launch import launch
from helpers.lab.runs.failure_report import RunFailed
from helpers.train.arguments import parse, said_of_fields
from tests.support import scripts, tiny

TSV = "sentence\tlabel\nit is good\t1\nit is bad\t0\n"
LINUX = sys.platform.startswith("linux")


@pytest.fixture
def refusal(tmp_path):
    """Call it with arguments: the line with which train.py refuses them, having written nothing."""

    def call(*arguments: object, **options: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        line = scripts.refusal(*arguments, **{"out": tmp_path / "out", **options})
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return call


def config_folder(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("arguments", "ranks", "words"),
    [
        ("--tp 3", 3, "tp=3 does not divide GPT-J's 4 attention heads; tp can be 2, 4"),
        ("--tp 2 --model falcon-7b", 2, "does not divide Falcon's 71 attention heads"),
        ("--tp 2", 1, "needs 2 processes (tp=2) but 1 was started"),
        ("--tp 2", 4, "but 4 were started: start it with torchrun --nproc-per-node 2"),
        ("", 2, "but 2 were started"),
        ("--tp 0", 1, "--tp: '0' is not a whole number of at least 1"),
        ("--dp-shard -2", 1, "--dp-shard: '-2' is not a whole number"),
        ("--dp-replicate 1.5", 1, "--dp-replicate: '1.5' is not a whole number"),
        ("--tp two", 1, "--tp: 'two' is not a whole number"),
        ("--zero-stage 4", 1, "zero_stage must be one of 1, 2, 3, not 4"),
        ("--sequence-parallel", 1, "needs tp above 1"),
        ("--precision int8", 1, "precision must be one of fp32, bf16, fp16, fp8, not 'int8'"),
        ("--reduce-dtype half", 1, "reduce_dtype must be one of"),
        ("--activation some", 1, "activation must be none, full, group_N or selective"),
        ("--activation group_0", 1, "not 'group_0'"),
    ],
)
def test_a_plan_that_cannot_be(refusal, arguments: str, ranks: int, words: str) -> None:
    assert words in refusal(*arguments.split(), ranks=ranks)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--steps 0", "--steps: '0' is not a whole number of at least 1"),
        ("--batch-size 0", "--batch-size"),
        ("--lr nan", "--lr: 'nan' is not a number above 0"),
        ("--weight-decay -1", "--weight-decay: '-1' is not a number of at least 0"),
        ("--warmup -3", "--warmup: '-3' is not a whole number from 0"),
        ("--seed 99999999999999999999", "--seed"),
        ("--lr-schedule step", "choose from"),
        ("--task translate", "choose from"),
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("--seq-len 513", "seq_len 513 is longer than the model's 512 positions"),
        ("--seq-len 1", "leaves nothing to predict"),
        ("--model ~nobody-of-that-name/x", "there is no such home folder"),
        ("--layers 1000000000", "has num_hidden_layers 1000000000: from 1 to 10000 can be trained"),
        ("--pp 1000000000", "1000000000 x 1 stages: at most 10000"),
        ("--microbatches 1000000", "microbatches is 1000000: at most 100000"),
        ("--hidden 33", "heads=4 does not divide hidden=33"),
        ("--heads 64 --hidden 64", "rotary positions turn 1: that must be even"),
        ("--model llama-tiny --heads 1", "is no multiple of the 2 key-value heads"),
        ("--tokenizer no/such.json", "no tokenizer at no/such.json"),
        ("--resume", "holds no checkpoint: nothing to resume"),
        ("--resume no/such", "no/such holds no checkpoint"),
    ],
)
def test_numbers_and_names_that_cannot_be(refusal, arguments: str, words: str) -> None:
    assert words in refusal(*arguments.split())


def test_a_file_where_checkpoints_would_be(refusal, tmp_path) -> None:
    """It is said before a step is taken, and not by the first checkpoint."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").touch()
    line = refusal("--resume", "auto", out=tmp_path / "run")
    assert "is a file, and a folder of checkpoints is needed there" in line


def test_a_model_that_is_not_there(refusal, tmp_path) -> None:
    assert "no preset (bert-tiny, " in refusal("--model", "gptj-huge")
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal("--model", tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{broken", "not a valid JSON file"),
        ("null", "no configuration that transformers reads"),
        ("{}", "should have a `model_type` key"),
        ('{"model_type": "gpt-9"}', "does not recognize this architecture"),
        ('{"model_type": "gptj", "n_head": "four"}', "'n_head' expected int"),
        ('{"model_type": "gptj", "n_embd": 33, "n_head": 4}', "embed_dim must be divisible"),
    ],
)
def test_a_configuration_that_is_none(refusal, tmp_path, text: str, words: str) -> None:
    line = refusal("--model", config_folder(tmp_path / "model", text))
    assert words.lower() in line.lower()


def test_a_model_that_tp_cannot_split_is_told_what_works(refusal, tmp_path) -> None:
    text = json.dumps(transformers.OpenAIGPTConfig().to_diff_dict())
    line = refusal("--model", config_folder(tmp_path / "model", text), "--tp", 2, ranks=2)
    assert line.startswith("openai-gpt cannot be split by tp: ")
    assert "dp_shard and dp_replicate" in line
    assert "GPT-J, GPT-2, GPT-NeoX, Falcon, Llama" in line


def test_a_model_that_is_no_causal_language_model(refusal, tmp_path) -> None:
    text = json.dumps(transformers.T5Config().to_diff_dict())
    line = refusal("--model", config_folder(tmp_path / "model", text))
    assert line.startswith("transformers cannot build this t5")


def test_data_that_is_missing(refusal, tmp_path) -> None:
    assert "no such data file" in refusal("--data", tmp_path / "no.tsv")
    assert "no such data file" in refusal("--eval-data", tmp_path / "no.tsv")


def test_a_label_that_training_does_not_know(refusal, tmp_path) -> None:
    (tmp_path / "train.tsv").write_text(TSV)
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\nso so\t2\n")
    line = refusal(
        *("--task", "classify", "--data", tmp_path / "train.tsv"),
        *("--eval-data", tmp_path / "dev.tsv"),
    )
    assert line.endswith("dev.tsv line 2: the label '2' is not among 0, 1")


def test_a_tokenizer_larger_than_the_models_weights(refusal, tmp_path) -> None:
    tiny.fresh("gpt2", torch.float32).save_pretrained(tmp_path / "model")
    assert "give the model's own tokenizer" in refusal(
        "--model", tmp_path / "model", "--seq-len", 64
    )


@pytest.mark.parametrize(
    "place",
    [
        "file",
        "file/run",
        pytest.param("/proc/run", marks=pytest.mark.skipif(not LINUX, reason="needs /proc")),
    ],
)
def test_an_out_that_cannot_be_written(refusal, tmp_path, place) -> None:
    """Not by permissions: root may write anywhere, except where the system itself says no."""
    (tmp_path / "file").touch()
    assert f"cannot write to {tmp_path / place}" in refusal(out=tmp_path / place)


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "checkpoints/step-00000010"])
def test_an_out_that_holds_a_run(refusal, tmp_path, name) -> None:
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).touch()
    assert "already holds a run: give another --out" in refusal()


# The same through the real thing: separate processes, from the outside.


@pytest.mark.slow
def test_a_process_that_is_refused(tmp_path) -> None:
    (tmp_path / "a.tsv").write_bytes(TSV.encode("utf-16"))
    done = scripts.process(data=tmp_path / "a.tsv", out=tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not UTF-8" in scripts.the_line(done.stderr)
    assert not (tmp_path / "out").exists()


def test_help_says_each_field_of_the_plan_and_each_choice(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = capsys.readouterr().out
    for field in dataclasses.fields(ParallelPlan):
        assert said_of_fields(ParallelPlan)[field.name] in said
    for choice in (*SCHEDULES, *WAYS, *SPLITS, *PRECISIONS):
        assert f"`{choice}`" in said


@pytest.mark.slow
def test_weights_that_turn_out_broken_while_loading(tmp_path) -> None:
    """A file of several, cut short: found by reading it, and still before anything is written."""
    model = tiny.fresh("llama", torch.float32)
    model.resize_token_embeddings(2048)
    model.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    [*_, last] = sorted((tmp_path / "model").glob("model-*.safetensors"))
    last.write_bytes(last.read_bytes()[:-100])
    done = scripts.process(model=tmp_path / "model", seq_len=64, out=tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{last.name} in model is broken" in scripts.the_line(done.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ranks_that_are_refused_speak_with_one_voice(tmp_path) -> None:
    with pytest.raises(RunFailed) as caught:
        launch("scripts/train.py", nproc=2, out=tmp_path / "out", tp=2, heads=1, show=False)
    assert caught.value.exit_code == 2
    assert caught.value.message.startswith("tp=2 does not divide GPT-J's 1 attention heads")
    assert "\n" not in caught.value.message
    spoken = [file.read_text() for file in (tmp_path / "out").rglob("stderr.log")]
    assert sorted(text.count("error:") for text in spoken) == [0, 1]
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"logs", "launch.json"}  # the launcher's own
