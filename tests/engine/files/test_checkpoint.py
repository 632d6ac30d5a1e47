"""Checkpoints: exact under the same plan, equal under any other, atomic, checked."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.files import checkpoints as checkpoint
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said

PLANS = {
    "one": ParallelPlan(),
    "tp2": ParallelPlan(tp=2),
    "zero1": ParallelPlan(dp_shard=2, zero_stage=1),
    "zero3": ParallelPlan(dp_shard=2),
    "zero3-4": ParallelPlan(dp_shard=4),
    "tp2-zero2": ParallelPlan(tp=2, dp_shard=2, zero_stage=2),
    "tp2-zero3": ParallelPlan(tp=2, dp_shard=2),
    "tp4": ParallelPlan(tp=4),
    "cp2": ParallelPlan(cp=2),
    "cp2-zero1": ParallelPlan(cp=2, dp_shard=2, zero_stage=1),
    "cp2-tp2": ParallelPlan(cp=2, tp=2, cp_attention="gather"),
    "cp2-zero3-spread": ParallelPlan(cp=2, dp_shard=2, placement="spread"),
    "cp2-zero1-cdpt": ParallelPlan(cp=2, dp_shard=2, zero_stage=1, placement="CDPT"),
    "hsdp": ParallelPlan(dp_replicate=2, dp_shard=2),
    "tp2-hsdp": ParallelPlan(tp=2, dp_replicate=2, dp_shard=2),
    "pp2": ParallelPlan(pp=2, microbatches=4),
    "pp4": ParallelPlan(pp=4, microbatches=4, schedule="gpipe"),
    "pp2-v-zero1": ParallelPlan(
        pp=2, dp_shard=2, zero_stage=1, microbatches=4, schedule="zero-bubble-v"
    ),
}


def trainer_of(family: str, plan: ParallelPlan) -> Trainer:
    return parity.trainer_of(family, plan, layers=4, clip=tiny.CLIP)


def loss_of(trainer: Trainer, family: str, step: int) -> float:
    ids, labels, inputs = tiny.masked_batch(family, step)
    return trainer.step(ids, labels, **inputs).loss


def run_and_save(family: str, plan: ParallelPlan, folder: Path, background: bool) -> list[float]:
    """Ten steps, a checkpoint after the fifth; the losses of the last five."""
    trainer = trainer_of(family, plan)
    checkpoints = Checkpoints(str(folder), background=background)
    losses = []
    for step in range(10):
        losses.append(loss_of(trainer, family, step))
        if step == 4:
            checkpoints.save(trainer)
    checkpoints.finish()
    return losses[5:]


def resume(family: str, plan: ParallelPlan, folder: Path) -> list[float]:
    trainer = trainer_of(family, plan)
    assert Checkpoints(folder).resume(trainer)
    assert trainer.steps_done == 5
    return [loss_of(trainer, family, step) for step in range(5, 10)]


def train_while_checking_in(plan: ParallelPlan, folder: Path) -> list[str]:
    """Checksums that take until three more steps are done; what is there then, and at the end."""
    trainer = trainer_of("gptj", plan)
    checkpoints = Checkpoints(folder, background=True)
    trainer.step(*tiny.batch(0))
    steps_done, digest = threading.Event(), checkpoint.sha256
    together = checkpoint.on_all_ranks

    def late(path: Path) -> str:
        assert steps_done.wait(60)
        return digest(path)

    def apart(work: Callable, group: Any = None) -> list:
        """Messages that would mix with those of the steps are an error."""
        beside = threading.current_thread() is not threading.main_thread()
        assert group is (checkpoints.group if beside else None)
        return together(work, group)

    with (
        patch.object(checkpoint, "sha256", late),
        patch.object(checkpoint, "on_all_ranks", apart),
    ):
        checkpoints.save(trainer)
        for step in range(1, 4):
            trainer.step(*tiny.batch(step))
        found = names(folder)
        steps_done.set()
        checkpoints.finish()
    return found + names(folder)


def test_files_are_checked_in_beside_the_training(tmp_path: Path) -> None:
    for found in pool(2).run(train_while_checking_in, PLANS["zero3"], tmp_path):
        assert found == ["step-00000001"]


def save_at_once_again(folder: Path) -> list[str]:
    """Two checkpoints, the second while the first is being checked in."""
    trainer = trainer_of("gptj", ParallelPlan())
    checkpoints, digest = Checkpoints(folder, background=True), checkpoint.sha256
    begun = threading.Event()

    def slow(path: Path) -> str:
        begun.set()
        time.sleep(0.2)
        return digest(path)

    with patch.object(checkpoint, "sha256", slow):
        for step in range(2):
            trainer.step(*tiny.batch(step))
            checkpoints.save(trainer)
            assert begun.wait(60)
        checkpoints.finish()
    return names(folder)


def test_a_checkpoint_waits_for_the_one_before(tmp_path: Path) -> None:
    (found,) = pool(1).run(save_at_once_again, tmp_path)
    assert found == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize(
    ("name", "when"),
    each(("one", "tp2", "zero1", "tp2-zero3", "hsdp", "pp2"), ("at-once", "background")),
)
def test_the_same_plan_goes_on_to_the_last_digit(name: str, when: str, tmp_path: Path) -> None:
    plan = PLANS[name]
    ranks = pool(plan.world_size)
    expected = ranks.run(run_and_save, "gptj", plan, tmp_path, when == "background")
    assert ranks.run(resume, "gptj", plan, tmp_path) == expected


CHANGES = (
    "one to tp2-hsdp",
    "tp2 to one",
    "zero1 to tp4",
    "zero3 to zero3-4",
    "tp2-zero3 to zero1",
    "zero3-4 to tp2-zero2",
    "tp2-hsdp to zero3",
    "tp2-zero2 to hsdp",
    "pp2 to one",
    "pp2 to pp4",
    "pp2 to tp2",
    "tp2-zero3 to pp2-v-zero1",
    "cp2 to cp2-zero1",
    "zero3 to cp2-tp2",
    "cp2-tp2 to one",
    "cp2-zero3-spread to one",
    "one to cp2-zero1-cdpt",
)


def check_going_on(family: str, change: str, folder: Path) -> None:
    first, then = (PLANS[name] for name in change.split(" to "))
    expected = pool(first.world_size).run(run_and_save, family, first, folder, False)[0]
    for losses in pool(then.world_size).run(resume, family, then, folder):
        parity.close("losses", torch.tensor(losses), torch.tensor(expected), 1e-10)


@pytest.mark.parametrize(
    ("family", "change"), each(("gpt2", "falcon-mqa", "llama", "neox"), CHANGES)
)
def test_another_plan_goes_on_alike(family: str, change: str, tmp_path: Path) -> None:
    check_going_on(family, change, tmp_path)


@pytest.mark.parametrize("change", ("tp2 to pp2", "pp2 to zero3"))
def test_an_encoder_goes_on_alike(change: str, tmp_path: Path) -> None:
    check_going_on("bert-mlm", change, tmp_path)


def save_steps(folder: Path, steps: int, keep: int) -> None:
    trainer = trainer_of("gptj", ParallelPlan())
    checkpoints = Checkpoints(folder, keep=keep, fixed={"batch_size": 8})
    for step in range(steps):
        trainer.step(*tiny.batch(step))
        checkpoints.save(trainer)


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoint.list_checkpoints(folder)]


def step_resumed(folder: Path) -> int:
    trainer = trainer_of("gptj", ParallelPlan())
    Checkpoints(folder).resume(trainer)
    return trainer.steps_done


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    pool(1).run(save_steps, tmp_path, 4, 2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    assert pool(1).run(step_resumed, tmp_path) == [4]


def test_checkpoints_are_in_the_order_of_their_steps_however_many_digits_these_have(
    tmp_path: Path,
) -> None:
    ordered = ["step-00000009", "step-99999999", "step-100000000", "step-1000000000"]
    for name in reversed(ordered):
        (tmp_path / name).mkdir()
    assert names(tmp_path) == ordered
    assert checkpoint.pick(tmp_path).name == ordered[-1]


def order_of_disk(folder: Path) -> list[tuple[str, str]]:
    """What was put on disk (fsync) and renamed while a checkpoint was made, by name, in order."""
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def seen_fsync(descriptor: int) -> None:
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def seen_rename(path: Path, target: Path) -> Path:
        calls.append(("rename", path.name))
        return rename(path, target)

    with patch.object(os, "fsync", seen_fsync), patch.object(Path, "rename", seen_rename):
        save_steps(folder, 1, 1)
    return calls


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of descriptors are Linux's")
def test_all_is_on_disk_before_a_checkpoint_has_its_name(tmp_path: Path) -> None:
    (calls,) = pool(1).run(order_of_disk, tmp_path / "run")
    renamed = calls.index(("rename", "step-00000001.partial"))
    before = {name for kind, name in calls[:renamed] if kind == "fsync"}
    files = {path.name for path in (tmp_path / "run" / "step-00000001").iterdir()}
    assert files | {"step-00000001.partial"} <= before
    assert calls[renamed + 1 :] == [("fsync", "run")]


def load_error(folder: Path, fixed: dict) -> str:
    trainer = trainer_of("gptj", ParallelPlan())
    return said(Checkpoints(folder, fixed=fixed).load, trainer, checkpoint.pick(folder))


def test_a_flipped_byte_is_found_and_the_one_before_offered(tmp_path: Path) -> None:
    pool(1).run(save_steps, tmp_path, 3, 3)
    victim = next((tmp_path / "step-00000003").glob("*.distcp"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    words = pool(1).run(load_error, tmp_path, {})[0]
    assert victim.name in words and "damaged" in words and "step-00000002" in words
    victim.unlink()
    assert "lacks" in pool(1).run(load_error, tmp_path, {})[0]


def test_a_fact_that_must_not_change_is_named(tmp_path: Path) -> None:
    pool(1).run(save_steps, tmp_path, 1, 1)
    assert "batch_size 8" in pool(1).run(load_error, tmp_path, {"batch_size": 16})[0]


def save_and_load_with(folder: Path, facts: dict) -> None:
    trainer = trainer_of("gptj", ParallelPlan())
    Checkpoints(folder, fixed=facts).save(trainer)
    Checkpoints(folder, fixed=facts).load(trainer, checkpoint.pick(folder))


def test_a_fact_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    pool(1).run(save_and_load_with, tmp_path, {"betas": (0.9, 0.95)})
    for fact in (tmp_path, float("nan"), {1, 2}):
        with pytest.raises(UserError, match="facts of a checkpoint are numbers, texts"):
            Checkpoints(tmp_path, fixed={"fact": fact})


def save_into(folder: Path) -> str:
    with pytest.raises(checkpoint.CheckpointFailed) as caught:
        Checkpoints(folder).save(trainer_of("gptj", ParallelPlan()))
    return str(caught.value)


def save_until_the_disk_fails(folder: Path) -> str:
    def fails(path: Path) -> str:
        raise OSError(5, "Input/output error")

    with patch.object(checkpoint, "sha256", fails):
        return save_into(folder)


def test_a_draft_that_cannot_be_finished_makes_room(tmp_path: Path) -> None:
    (words,) = pool(1).run(save_until_the_disk_fails, tmp_path)
    assert "Input/output error" in words and not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        (words,) = pool(1).run(save_into, folder)
        assert words.startswith("the checkpoint of step 0 could not be written: ")
        assert words.endswith("; there is no earlier one") and "\n" not in words


def test_what_lies_among_checkpoints_by_a_link_is_left(tmp_path: Path) -> None:
    """A folder of a run that is kept on another disk, and a file that is no draft."""
    pool(1).run(save_steps, tmp_path / "other", 1, 1)
    (tmp_path / "run").mkdir()
    (kept,) = checkpoint.list_checkpoints(tmp_path / "other")
    (tmp_path / "run" / kept.name).symlink_to(kept)
    (tmp_path / "run" / "x.partial").touch()
    pool(1).run(save_steps, tmp_path / "run", 3, 1)
    assert names(tmp_path / "run") == ["step-00000003"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000003"]
    assert (kept / "manifest.json").exists()


def load_into(folder: Path, layers: int, tied: bool) -> str:
    """What a model of so many layers says to a checkpoint of four, whose head is its own."""
    plan = ParallelPlan(pp=2)
    config = tiny.config("llama", layers=layers)
    config.tie_word_embeddings = tied
    model = transformers.AutoModelForCausalLM.from_config(config)  # another on every rank
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)
    try:
        Checkpoints(folder).load(trainer, checkpoint.pick(folder))
    except UserError as error:
        return str(error)
    trainer.step(*tiny.batch(5))  # which refuses weights of their own on every rank
    return ""


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """Of fewer layers the rest would be left out, and training go on from some of a model."""
    pool(1).run(run_and_save, "llama", PLANS["one"], tmp_path, False)
    for other in ((3, False), (5, False), (4, True)):
        told = pool(2).run(load_into, tmp_path, *other)
        assert all("is of another model: of " in one for one in told)
    assert pool(2).run(load_into, tmp_path, 4, False) == ["", ""]


def test_half_a_checkpoint_is_not_seen(tmp_path: Path) -> None:
    pool(1).run(save_steps, tmp_path, 2, 2)
    newest = tmp_path / "step-00000002"
    shutil.copytree(newest, tmp_path / "step-00000003.partial")
    (tmp_path / "step-00000003.partial" / "manifest.json").unlink()
    assert checkpoint.pick(tmp_path) == newest
    assert json.loads((newest / "manifest.json").read_text())["step"] == 2
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.pick(tmp_path / "elsewhere")


def scale_after(folder: Path, precision: str, resume: bool) -> tuple[float, int, int, int]:
    """The scaling of a run of two steps; of the first run one overflow was left out."""
    plan = ParallelPlan(precision=precision)
    trainer, checkpoints = parity.trainer_of("gptj", plan, torch.float32), Checkpoints(folder)
    if resume:
        checkpoints.load(trainer, checkpoint.pick(folder))
    else:
        trainer.scaler.overflowed(finite=False)
    trainer.step(*tiny.batch(0))
    checkpoints.save(trainer)
    scaler = trainer.scaler
    return scaler.scale, scaler.growth_interval, scaler.good_steps, scaler.skipped


FRESH, HALVED, NONE = (2.0**16, 1000), (2.0**15, 1000), (1.0, 0)


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("bf16", "fp16", (*FRESH, 1, 1)),
        ("fp16", "bf16", (*NONE, 1, 1)),
        ("fp16", "fp32", (*NONE, 1, 1)),
        ("fp16", "fp16", (*HALVED, 2, 1)),
        ("bf16", "fp32", (*NONE, 2, 1)),
    ],
)
def test_a_scale_goes_on_where_the_precision_has_one(
    first: str, then: str, expected: tuple, tmp_path: Path
) -> None:
    pool(1).run(scale_after, tmp_path, first, False)
    assert pool(1).run(scale_after, tmp_path, then, True) == [expected]
