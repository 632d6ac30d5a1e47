"""Slurm itself, where it is installed: a generated script trains, and a job taken back goes on."""

import pytest

from helpers.engine.errors import UserError
from helpers.lab.cluster import local_slurm
from helpers.lab.cluster.described_run import describe
from helpers.lab.cluster.slurm import slurm_script
from helpers.lab.launch import process_guard as guard
from tests.support.waiting import wait_for
from tests.train.test_resume import losses

STEPS = 60
TRAINING = {"model": "gptj-tiny", "dp_shard": 2, "steps": STEPS, "batch_size": 8, "seq_len": 32}


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(local_slurm, "PATH", "/nowhere")
    with pytest.raises(UserError, match=r"not installed \(munged, .*\): apt-get install slurm-wlm"):
        local_slurm.local_slurm().__enter__()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(bool(local_slurm.missing()), reason="needs Debian's slurm-wlm and munge")
def test_a_job_that_is_taken_back_in_its_middle_goes_on_to_its_end(tmp_path):
    out = tmp_path / "run"
    run = describe(
        "scripts/train.py",
        nodes=2,
        nproc=1,
        restarts=1,
        out=out,
        checkpoint_every=5,
        resume="auto",
        **TRAINING,
    )
    with local_slurm.local_slurm() as slurm:
        marker = slurm.environment[guard.MARKER]
        job = slurm.submit(slurm_script(run, minutes=10, gpus=False))
        assert wait_for(lambda: len(losses(out)) > 12, 120), slurm.log(job)
        before = losses(out)
        slurm.requeue(job)
        assert slurm.wait(job) == "COMPLETED", slurm.log(job)
        assert slurm.restarts(job) == 1
        assert f"done: {STEPS} steps" in slurm.log(job)
        with pytest.raises(UserError, match="sbatch refuses: "):
            slurm.submit("no script")
    after = losses(out)
    assert len(after) == STEPS and after[:10] == before[:10]
    assert not guard.family(marker)
