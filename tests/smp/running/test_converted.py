"""Converted GPT-J scripts train as helpers.train does with the same settings, step by step."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers.engine.models.configurations import load_config
from helpers.lab.launch.launch import launch
from helpers.lab.runs.failure_report import RunFailed
from helpers.leave.writing import written
from helpers.smp.leaving import leave
from helpers.train.arguments import parse
from helpers.train.job import prepare

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "data/leaving"
STEPS, BATCH = 4, 8
SETTINGS = {"seed": 7, "steps": STEPS, "batch_size": BATCH, "seq_len": 32, "lr": 1e-3}
CLOSE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a tiny GPT-J and the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(load_config("gptj-tiny")).save_pretrained(folder)
    for path in (ROOT / "data/tokenizer").iterdir():
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def rows(model, tmp_path_factory):
    """The rows that helpers.train takes with these settings, as the scripts read theirs."""
    folder = tmp_path_factory.mktemp("train")
    flags = {"model": model, "out": folder / "run"} | SETTINGS
    words = [word for key, value in flags.items() for word in (_flag(key), str(value))]
    batches = prepare(parse(words)).batches(0)
    ids = [row for batch in batches for row in batch.input_ids.tolist()]
    text = "".join(json.dumps({"input_ids": one}) + "\n" for one in ids[: STEPS * BATCH])
    (folder / "data").mkdir()
    (folder / "data/rows.json").write_text(text)
    return folder / "data"


def _flag(name):
    return f"--{name.replace('_', '-')}"


def converted(folder, text, *files):
    """A script of the published ones, with changes of its settings, as --write leaves it."""
    path = folder / files[0].name
    path.write_text(text)
    return _put(folder, written(leave([path, *files[1:]])), path)


def _put(folder, files, path):
    target = folder / "written" / path.name
    target.parent.mkdir(exist_ok=True)
    target.write_text(files[path.name])
    return target


def trained(model, out, warm, **more):
    flags = SETTINGS | {"model": model, "clip": 1e6, "lr_schedule": "linear"} | more
    run = launch("helpers.train", nproc=2, ranks=warm, out=str(out), show=False, **flags)
    return run.metrics["loss"].tolist()


def losses(run):
    return [float(found) for found in re.findall(r"[Ll]oss:? ([0-9.]+)", run.log(0))]


def differ(got, wanted):
    return max(abs(one - other) for one, other in zip(got, wanted, strict=True))


@pytest.mark.long
def test_the_tensor_script(model, rows, tmp_path, warm):
    """Tensor ranks, with a checkpoint on the way, from which a second start goes on."""
    script = converted(
        tmp_path,
        (PUBLISHED / "gptj_tensor.py").read_text("utf-8"),
        PUBLISHED / "gptj_tensor.py",
    )
    flags = {
        "model_name": model,
        "seed": 7,
        "max_steps": STEPS,
        "train_batch_size": BATCH,
        "lr": 1e-3,
        "max_context_width": 32,
        "tensor_parallel_degree": 2,
        "training_dir": rows,
        "checkpoint_dir": tmp_path / "checkpoints",
        "checkpoint_freq": 2,
        "save_final_full_model": 1,
        "model_dir": tmp_path / "saved",
    }
    options = {"nproc": 2, "ranks": warm, "show": False}
    run = launch(str(script), out=str(tmp_path / "run"), **options, **flags)
    wanted = trained(model, tmp_path / "wanted", warm, tp=2)
    assert differ(losses(run), wanted) < CLOSE
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved/fullmodel")
    assert saved.config.model_type == "gptj"
    flags |= {"load_partial": 1, "max_steps": 1, "save_final_full_model": 0}
    again = launch(str(script), out=str(tmp_path / "again"), **options, **flags)
    assert f"goes on after step {STEPS}" in again.log(0)
    assert losses(again)[0] < wanted[0] - CLOSE  # of the same first batch, by a trained model


@pytest.mark.exhaustive  # notebook 10 runs it, too
def test_the_pipeline_script(model, rows, tmp_path, warm):
    """Its job's configuration, over two stages; the step that it forgot is put in."""
    job = (PUBLISHED / "gptj_pipeline_job.py").read_text("utf-8")
    for old, new in (
        ('"pipeline_parallel_degree": 16', '"pipeline_parallel_degree": 2'),
        ('"fp16": True', '"fp16": False'),
    ):
        assert old in job
        job = job.replace(old, new)
    (tmp_path / "job.py").write_text(job)
    text = (PUBLISHED / "gptj_pipeline.py").read_text("utf-8")
    forgotten = "            self.lr_scheduler.step()\n            total_steps += 1\n"
    assert forgotten in text
    stepped = text.replace(forgotten, f"            self.optimizer.step()\n{forgotten}")
    stepped = re.sub(r"flush=True\)\n +total_steps \+= 1", "flush=True)", stepped)
    script = converted(tmp_path, stepped, PUBLISHED / "gptj_pipeline.py", tmp_path / "job.py")
    flags = {
        "model_name_or_path": model,
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-3,
        "training_dir": rows,
    }
    run = launch(str(script), nproc=2, ranks=warm, show=False, out=str(tmp_path / "run"), **flags)
    plan = {"pp": 2, "microbatches": 2, "schedule": "gpipe", "weight_decay": 0.0}
    assert differ(losses(run), trained(model, tmp_path / "wanted", warm, **plan)) < CLOSE


@pytest.mark.exhaustive
def test_data_ranks_that_share_the_optimizer_s_state(model, rows, tmp_path, warm):
    """The same script over two data ranks, each with half of the rows of every step."""
    text = (PUBLISHED / "gptj_tensor.py").read_text("utf-8")
    script = converted(tmp_path, text, PUBLISHED / "gptj_tensor.py")
    flags = {"model_name": model, "max_steps": STEPS, "train_batch_size": BATCH // 2, "lr": 1e-3}
    flags |= {"shard_optimizer_state": 1, "training_dir": rows, "max_context_width": 32}
    run = launch(str(script), nproc=2, ranks=warm, show=False, out=str(tmp_path / "run"), **flags)
    wanted = trained(model, tmp_path / "wanted", warm, dp_shard=2, zero_stage=1)
    assert differ(losses(run), wanted) < CLOSE


def test_a_script_that_is_not_the_same_differs(model, rows, tmp_path, warm):
    """A planted fault: every rank takes rows of its own, as if the tensor ranks were data ranks."""
    text = (PUBLISHED / "gptj_tensor.py").read_text("utf-8")
    script = converted(tmp_path, text.replace("smp.rdp_", "smp.dp_"), PUBLISHED / "gptj_tensor.py")
    flags = {"model_name": model, "max_steps": 2, "train_batch_size": BATCH // 2, "lr": 1e-3}
    flags |= {"tensor_parallel_degree": 2, "training_dir": rows, "max_context_width": 32}
    run = launch(str(script), nproc=2, ranks=warm, show=False, out=str(tmp_path / "run"), **flags)
    wanted = trained(model, tmp_path / "wanted", warm, tp=2, steps=2)
    assert differ(losses(run), wanted) > 100 * CLOSE


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("    optimizer.step()", "    pass", "a second backward without a step"),
        (
            "AdamW(groups, lr=args.lr, betas=(args.beta1, args.beta2))",
            "Adagrad(groups, lr=args.lr)",
            "Adagrad is not known to work on parts",
        ),
        ('"tensor_parallel_degree": args', '"tensor_parallel_degre": args', "tensor_parallel_deg"),
    ],
)
def test_what_a_converted_script_cannot_do_ends_in_a_line(
    old, new, words, model, rows, tmp_path, warm
):
    text = (PUBLISHED / "gptj_tensor.py").read_text("utf-8")
    assert old in text
    script = converted(tmp_path, text.replace(old, new), PUBLISHED / "gptj_tensor.py")
    flags = {"model_name": model, "training_dir": rows, "tensor_parallel_degree": 2}
    with pytest.raises(RunFailed, match=words):
        launch(str(script), nproc=2, ranks=warm, show=False, out=str(tmp_path / "run"), **flags)
