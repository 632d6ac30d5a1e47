"""A run has its folder for itself, and no rank of it outlives its agent, whoever started that."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from helpers.engine.errors import UserError
from helpers.engine.files import run_record
from tests.support.waiting import wait_for
from tests.train.test_resume import losses

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TRAIN = ["--model", "gptj-tiny", "--batch-size", "8", "--seq-len", "32", "--checkpoint-every", "5"]


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


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_and_the_first_goes_on(running):
    run, out = running
    second = start(1, out, "--dp-shard", "1", "--steps", "100000", "--resume", "auto")
    said, _ = second.communicate(timeout=120)
    assert f"another run writes to {out}: wait for its end, or give another --out" in said
    assert second.returncode != 0 and run.poll() is None
    before = len(losses(out))
    assert wait_for(lambda: len(losses(out)) > before + 2, 30)


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
