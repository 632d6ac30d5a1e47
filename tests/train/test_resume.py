"""Runs that are killed, and go on: the same losses, from whatever checkpoint is whole."""

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from helpers.engine.files import checkpoints as checkpoint
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.plan import ParallelPlan
from helpers.lab.launch.launch import launch
from helpers.lab.runs.failure_report import RunFailed
from tests.engine.files.test_checkpoint import save_steps, trainer_of
from tests.support import scripts, tiny
from tests.support.ranks import pool
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

STEPS = 20
# long enough steps and large enough checkpoints to be hit in the middle
RUN = {
    "model": "neox-tiny",
    "layers": 2,
    "hidden": 128,
    "steps": STEPS,
    "batch_size": 16,
    "seq_len": 64,
}
ZERO3 = {"dp_shard": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole")
    scripts.trained(2, out=out, **RUN, **ZERO3)
    return losses(out)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with checkpoints, of which a rank was killed between the tenth step and the
    end. Copy it: several tests go on from it."""
    out = tmp_path_factory.mktemp("killed") / "run"

    def after_step_10(rank: psutil.Process) -> None:
        come_to(lambda: len(losses(out)) > 10)
        rank.kill()

    kill_a_rank(out, after_step_10, checkpoint_every=10)
    assert 10 < len(losses(out)) < STEPS
    assert names(out) == ["step-00000010"]
    return out


def losses(out: Path) -> list[float]:
    """By step, from the first; a line that is being written does not count."""
    metrics = out / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return [json.loads(line)["loss"] for line in lines]


def names(out: Path) -> list[str]:
    folder = out / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def come_to(condition: Callable[[], object]) -> None:
    assert wait_for(condition, 120, every_s=0.001), "it did not come to that"


def kill_a_rank(out: Path, how: Callable[[psutil.Process], None], **flags: Any) -> None:
    """Start the run under ZeRO-3 and hand the process of rank 1 to `how`, which kills it."""
    mark = {"RESUME_MARK": uuid.uuid4().hex}
    wrong: list[BaseException] = []

    def watch() -> None:
        try:
            come_to(lambda: out.joinpath("metrics.jsonl").exists())
            [rank] = [p for p in psutil.process_iter() if is_rank(p, 1, mark)]
            how(rank)
        except BaseException as error:
            wrong.append(error)
            raise

    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(RunFailed) as caught:
        launch("scripts/train.py", nproc=2, out=out, env=mark, show=False, **RUN, **ZERO3, **flags)
    watcher.join()
    assert not wrong
    assert (caught.value.rank, caught.value.exit_code) == (1, -9)
    assert "rank 1 was killed by signal 9 (SIGKILL)" in caught.value.message
    assert not (out / "summary.json").exists()


def is_rank(process: psutil.Process, rank: int, mark: dict[str, str]) -> bool:
    try:
        variables = process.environ()
    except psutil.Error:
        return False
    return variables.items() >= (mark | {"RANK": str(rank)}).items()


def test_the_same_plan_goes_on_to_the_last_digit(whole, killed, tmp_path) -> None:
    out = shutil.copytree(killed, tmp_path / "run")
    flags = RUN | ZERO3 | {"resume": True, "checkpoint_every": 10}
    summary, lines = scripts.trained(2, out=out, **flags)
    assert losses(out) == whole
    assert all(line["peak_memory_bytes"] > 0 for line in lines)
    assert names(out) == ["step-00000010", "step-00000020"]
    assert summary["resumed_after"] == 10


@pytest.mark.parametrize("ranks", (2, 1))
def test_another_plan_goes_on_alike(whole, killed, tmp_path, ranks: int) -> None:
    flags = {"resume": killed / "checkpoints" / "step-00000010", "out": tmp_path / "run"}
    scripts.trained(ranks, tp=ranks, **RUN, **flags)
    assert losses(tmp_path / "run") == pytest.approx(whole[10:], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "background",
    (pytest.param(False, marks=pytest.mark.exhaustive), True),
    ids=("at-once", "background"),
)
def test_a_kill_in_the_middle_of_a_save_loses_nothing(whole, tmp_path, background: bool) -> None:
    out = tmp_path / "run"

    def drafts() -> list[Path]:
        return list((out / "checkpoints").glob("step-????????.partial"))

    def while_saving(rank: psutil.Process) -> None:
        """Stop the rank when a draft is there. If the draft stays, it waits for this rank."""
        come_to(lambda: len(losses(out)) > 5)
        while True:
            come_to(drafts)
            rank.suspend()
            time.sleep(0.3)
            if drafts():
                return rank.kill()
            rank.resume()

    kill_a_rank(out, while_saving, checkpoint_every=1, background=background)
    *_, newest = whole_ones = [name for name in names(out) if "." not in name]
    [draft] = drafts()
    assert len(whole_ones) == 2 and newest < draft.name
    done = int(newest.removeprefix("step-"))
    assert 1 < done < STEPS
    flags = {"resume": True, "checkpoint_every": STEPS}
    if background:
        scripts.trained(2, **RUN, **ZERO3, **flags, background=True, out=out)
        assert losses(out) == whole
    else:
        scripts.trained(**RUN, **flags, out=out)
        assert losses(out)[:done] == whole[:done]
        assert losses(out)[done:] == pytest.approx(whole[done:], rel=1e-5)
    assert names(out) == [newest, f"step-{STEPS:08d}"]  # the draft is gone


def test_a_damaged_checkpoint_is_refused_and_the_one_before_works(whole, killed, tmp_path) -> None:
    out = shutil.copytree(killed, tmp_path / "run")
    before = out / "checkpoints" / "step-00000010"
    newest = shutil.copytree(before, before.with_name("step-00000015"))
    [victim, *_] = sorted(newest.glob("*.distcp"))
    flip(victim)
    refused = scripts.process(**RUN, out=out, resume=True)
    assert (refused.returncode, refused.stdout) == (2, "")
    line = scripts.the_line(refused.stderr)
    assert line == f"{victim} is damaged: its checksum differs; the one before it is {before}"
    assert len(losses(out)) == len(losses(killed))
    scripts.trained(**RUN, out=out, resume=before, checkpoint_every=12, keep=1)
    assert losses(out) == pytest.approx(whole, rel=1e-5)
    assert names(out) == ["step-00000012"]  # the damaged one was of a future that is not this run's


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_fewer_steps_than_are_done_are_refused(killed, tmp_path) -> None:
    saved, out = killed / "checkpoints" / "step-00000010", tmp_path / "run"
    done = scripts.process(**RUN | {"steps": 3}, out=out, resume=saved)
    assert done.returncode == 2
    words = "has taken 10 steps already: --steps 3 is behind it"
    assert words in scripts.the_line(done.stderr)
    assert not out.exists()


def test_what_a_resumed_run_must_share(killed, tmp_path) -> None:
    def refusal(out: Path = killed, **changes: object) -> str:
        flags = RUN | {"resume": True} | changes
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        words = [word.removesuffix("=True") for word in words]
        return scripts.refusal(*words, out=out)

    assert refusal(batch_size=8) == "the checkpoint was made with batch_size 16, this run has 8"
    assert "hidden 128, this run has 64" in refusal(hidden=64)
    assert "layers 2, this run has 3" in refusal(layers=3)
    assert "model gpt_neox, this run has gptj" in refusal(model="gptj-tiny")
    assert "task lm, this run has classify" in refusal(task="classify")
    other = tmp_path / "other"
    other.mkdir()
    (other / "metrics.jsonl").touch()
    assert f"{other} already holds a run" in refusal(other, resume=killed)
    assert (other / "metrics.jsonl").exists()


SHORT = {"layers": 1, "hidden": 32, "heads": 2, "seq_len": 32, "batch_size": 8}


def test_other_data_of_as_many_tokens_is_refused(tmp_path: Path) -> None:
    lines = ["one two three", "four five six"]
    for name, order in (("first", 1), ("other", -1)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines[::order] * 100))
    flags = SHORT | {"out": tmp_path / "run", "steps": 2, "checkpoint_every": 1}
    scripts.trained(data=tmp_path / "first.txt", **flags)
    flags |= {"steps": 4, "resume": True}
    done = scripts.process(data=tmp_path / "other.txt", **flags)
    assert done.returncode == 2
    assert "was made with data of digest " in scripts.the_line(done.stderr)
    scripts.trained(data=tmp_path / "first.txt", **flags)


def test_what_a_resumed_run_may_change_is_told(tmp_path: Path) -> None:
    flags = SHORT | {"out": tmp_path / "run", "checkpoint_every": 2}
    scripts.trained(steps=2, **flags)
    flags |= {"resume": True}
    flags |= {"steps": 4, "lr": 5e-4, "clip": 0.5, "precision": "bf16"}
    flags |= {"weight_decay": 0.1, "warmup": 1, "lr_schedule": "constant"}
    done = scripts.process(**flags)
    assert done.returncode == 0, done.stderr
    [told] = [line for line in done.stdout.splitlines() if line.startswith("resumed with")]
    for words in ("lr 0.0005", "clip 0.5", "precision bf16", "steps 4"):
        assert words in told
    for words in ("weight_decay 0.1", "warmup 1", "lr_schedule constant"):
        assert words in told
    done = scripts.process(**flags)  # which is done already
    assert done.returncode == 0 and "resumed with" not in done.stdout


@pytest.mark.exhaustive
def test_adapters_do_not_go_on_with_another_base(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "other")):
        torch.manual_seed(seed)
        model = tiny.fresh("llama", torch.float32)
        model.resize_token_embeddings(2048)
        model.model.layers[0].mlp.up_proj.reset_parameters()
        model.save_pretrained(tmp_path / name)
    flags = {"seq_len": 32, "batch_size": 8, "lora_rank": 2, "out": tmp_path / "run"}
    flags |= {"checkpoint_every": 1}
    scripts.trained(model=tmp_path / "base", steps=1, **flags)
    done = scripts.process(model=tmp_path / "other", steps=2, resume=True, **flags)
    assert done.returncode == 2 and "base" in scripts.the_line(done.stderr)


def test_a_manifest_is_checked_too(killed, tmp_path) -> None:
    out = shutil.copytree(killed, tmp_path / "run")
    manifest = out / "checkpoints" / "step-00000010" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 10', '"step": 11'))
    line = scripts.refusal(*("--model", "neox-tiny", "--resume"), out=out)
    assert line.startswith(f"{manifest} is damaged") and line.endswith(
        "there is no earlier checkpoint to go on from"
    )


@pytest.fixture
def small_disk(disk_of: Callable[[str], Path]) -> Path:
    """Room for a checkpoint of 11 MB, and not for two."""
    return disk_of("18m")


@pytest.mark.exhaustive
def test_a_disk_that_fills_up_costs_one_line(small_disk: Path) -> None:
    out = small_disk / "run"
    done = scripts.process(**RUN, out=out, checkpoint_every=3)
    assert done.returncode == 1
    line = scripts.the_line(done.stderr)
    assert line.startswith("the checkpoint of step 6 could not be written: its disk is full")
    assert line.endswith(f"the newest whole one is {out / 'checkpoints' / 'step-00000003'}")
    assert names(out) == ["step-00000003"]
    assert checkpoint.read_manifest(checkpoint.pick(out), {})["step"] == 3
    assert len(losses(out)) == 6


def go_on(folder: Path, step: int) -> None:
    trainer = trainer_of("gptj", ParallelPlan())
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.load(trainer, folder / f"step-{step:08d}")
    trainer.step(*tiny.batch(step))
    checkpoints.save(trainer)


def test_going_on_from_an_earlier_checkpoint_never_drops_the_new_one(tmp_path: Path) -> None:
    pool(1).run(save_steps, tmp_path, 4, 4)
    pool(1).run(go_on, tmp_path, 2)
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["step-00000003"]
