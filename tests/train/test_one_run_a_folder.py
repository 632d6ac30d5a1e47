"""A run has its folder for itself, and no rank of it outlives its agent, whoever started that. And
folders that cannot be used as they are, and some that can: moved, linked, edited."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import transformers

from helpers.engine.errors import UserError
from helpers.engine.files import run_record
from helpers.engine.models.configurations import load_config
from helpers.train.arguments import parse
from helpers.train.job import prepare
from helpers.train.same_model import of_model
from tests.support import scripts
from tests.support.waiting import wait_for
from tests.train.test_resume import losses

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TRAIN = ["--model", "gptj-tiny", "--batch-size", "8", "--seq-len", "32", "--checkpoint-every", "5"]
SMALL = {"layers": 1, "hidden": 32, "heads": 2, "seq_len": 32, "batch_size": 4}
RESUMED = SMALL | {"steps": 4, "resume": True, "checkpoint_every": 1}


def start(ranks: int, out: Path, *flags: str) -> subprocess.Popen:
    """Training by plain torchrun, without this project's launcher."""
    words = [*TORCHRUN, str(ranks), "-m", "helpers.train", *TRAIN, "--out", str(out), *flags]
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A run of two ranks in its first steps, until the last test that wants it ends it."""
    out = tmp_path_factory.mktemp("running") / "run"
    run = start(2, out, "--dp-shard", "2", "--steps", "100000")
    family = []
    try:
        assert wait_for(lambda: len(losses(out)) > 8, 120), run.poll()
        family = psutil.Process(run.pid).children(recursive=True)
        yield run, out
    finally:
        run.kill()
        for process in family:
            if process.is_running():
                process.kill()
        run.communicate()


@pytest.mark.long
@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_and_the_first_goes_on(running):
    run, out = running
    second = start(1, out, "--dp-shard", "1", "--steps", "100000", "--resume", "auto")
    said, _ = second.communicate(timeout=120)
    assert f"another run writes to {out}: wait for its end, or give another --out" in said
    assert second.returncode != 0 and run.poll() is None
    before = len(losses(out))
    assert wait_for(lambda: len(losses(out)) > before + 2, 30)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_ranks_end_with_an_agent_that_is_killed(running):
    run, _ = running
    ranks = [p for p in psutil.Process(run.pid).children() if "helpers.train" in p.cmdline()]
    assert len(ranks) == 2
    run.send_signal(signal.SIGKILL)
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    assert wait_for(lambda: not any(p.is_running() and p.status() not in ended for p in ranks), 10)


def test_a_claim_ends_with_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "CLAIM_S", 0.3)
    own = run_record.claim(tmp_path / "run")
    with pytest.raises(UserError, match="another run writes to"):
        run_record.claim(tmp_path / "run")
    own.close()
    run_record.claim(tmp_path / "run").close()


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    scripts.trained(out=out, steps=2, checkpoint_every=1, **SMALL)
    return out


@pytest.fixture
def out(two_steps: Path, tmp_path: Path) -> Path:
    return shutil.copytree(two_steps, tmp_path / "run")


def test_a_lock_that_cannot_be_written_is_one_line(out: Path) -> None:
    (out / run_record.LOCK).unlink()
    (out / run_record.LOCK).mkdir()
    line = scripts.refusal("--resume", out=out)
    assert line == f"cannot write to {out}: Is a directory"


def test_a_link_that_leads_nowhere_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    done = scripts.process(out=tmp_path / "out", steps=1, **SMALL)
    assert done.returncode == 2
    assert scripts.the_line(done.stderr).startswith(f"cannot write to {tmp_path / 'out'}: ")


def test_a_file_in_the_way_is_one_line(out: Path) -> None:
    (out / "metrics.jsonl").unlink()
    (out / "metrics.jsonl").mkdir()
    done = scripts.process(out=out, **RESUMED)
    assert done.returncode == 1
    line = scripts.the_line(done.stderr)
    assert line == f"{out / 'metrics.jsonl'} cannot be read or written: Is a directory"
    assert not (out / "summary.json").exists()  # of a run that was done, and this one is not


def test_checkpoints_that_a_link_leads_to_are_the_runs_own(out: Path, tmp_path: Path) -> None:
    (out / "checkpoints").rename(tmp_path / "elsewhere")
    (out / "checkpoints").symlink_to(tmp_path / "elsewhere")
    scripts.trained(out=out, **RESUMED)
    kept = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert kept == {"step-00000003", "step-00000004"}


def test_a_renamed_checkpoint_has_the_steps_that_it_says(out: Path) -> None:
    folder = out / "checkpoints"
    (folder / "step-00000002").rename(folder / "step-00000003")
    summary, _ = scripts.trained(out=out, **RESUMED)
    assert summary["resumed_after"] == 2


def test_lines_of_metrics_that_a_summary_cannot_count_are_left_out(out: Path) -> None:
    rows = [1], {"step": 1}, {"step": True}, {"step": 1, "loss": 1, "tokens": "x", "step_s": 1}
    metrics = out / "metrics.jsonl"
    whole = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*map(json.dumps, rows), *whole]) + "\n")
    scripts.trained(out=out, **RESUMED)
    after = metrics.read_text().splitlines()
    assert after[:2] == whole and len(after) == 4


def test_what_ended_a_moment_ago_is_not_written_over(two_steps: Path, tmp_path: Path) -> None:
    """Two runs were started at once in a folder, and the first has ended before the second has
    loaded its model."""
    args = parse(["--steps", "1", "--out", str(tmp_path / "run")])
    job = prepare(args)
    shutil.copytree(two_steps, tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        job.claim_folder()
    job.own_folder.close()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--seed=1", "seed 0, this run has 1"),
        ("--seq-len=16", "seq_len 32, this run has 16"),
        ("--template=falcon", "template alpaca, this run has falcon"),
        ("--no-pack", "pack True, this run has False"),
    ],
)
def test_what_would_be_other_batches_is_refused(out: Path, flag: str, words: str) -> None:
    flags = ("--layers=1", "--hidden=32", "--heads=2", "--seq-len=32", "--batch-size=4")
    line = scripts.refusal(*flags, "--resume", "--steps=4", flag, out=out)
    assert line == f"the checkpoint was made with {words}"


@pytest.mark.parametrize(
    ("model", "name", "one", "other"),
    [
        ("qwen3", "layer_types", ["full_attention"] * 2, ["sliding_attention"] * 2),
        ("smollm3", "no_rope_layers", [1, 1], [1, 0]),
        ("mistral", "sliding_window", None, 4),
    ],
)
def test_lists_and_what_is_not_set_are_computed_with(model, name, one, other) -> None:
    first, second = (
        of_model(transformers.AutoConfig.for_model(model, num_hidden_layers=2, **{name: value}))
        for value in (one, other)
    )
    assert first[name] == one and second[name] == other


def test_another_configuration_of_the_same_sizes_is_refused(out: Path, tmp_path: Path) -> None:
    """Its weights fit, and what it computes of them is something else."""
    config = load_config("gptj-tiny")
    config.architectures = ["GPTJForCausalLM"]  # as save_pretrained of a model writes it
    config.save_pretrained(tmp_path / "same")
    config.layer_norm_epsilon *= 100
    config.save_pretrained(tmp_path / "other")
    sizes = ("--layers=1", "--hidden=32", "--heads=2", "--seq-len=32", "--batch-size=4")
    flags = (*sizes, "--from-scratch", "--resume", "--steps=4")
    line = scripts.refusal(*flags, "--model", tmp_path / "other", out=out)
    assert line == "the checkpoint was made with layer_norm_epsilon 1e-05, this run has 0.001"
    own = {"model": tmp_path / "same", "from_scratch": True}
    scripts.trained(out=out, **RESUMED | own)
