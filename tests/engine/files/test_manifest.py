"""What a checkpoint says of itself is held against its files, to their last byte."""

import json
from pathlib import Path

import pytest

from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.files.manifest import MANIFEST, read_manifest, sha256, verify, write_manifest
from helpers.engine.plan import ParallelPlan
from tests.engine.files.test_checkpoint import trainer_of
from tests.support.ranks import pool
from tests.support.refusals import said


def test_the_last_byte_of_a_large_file_counts(tmp_path: Path) -> None:
    """Files are read a megabyte at a time, and those of tiny models are smaller."""
    large = tmp_path / "large"
    large.write_bytes(bytes(3 * 2**20) + b"a")
    files = {"large": sha256(large)}
    verify(tmp_path, files)
    large.write_bytes(bytes(3 * 2**20) + b"b")
    with pytest.raises(UserError, match="large is damaged: its checksum differs"):
        verify(tmp_path, files)


def test_a_changed_manifest_is_found(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"step": 1})
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"step": 2}))
    with pytest.raises(UserError, match=r"manifest\.json is damaged: its checksum differs"):
        read_manifest(tmp_path, {})


def saved(folder: Path) -> None:
    Checkpoints(folder).save(trainer_of("gptj", ParallelPlan(dp_shard=2)))


def refusal(checkpoint: Path) -> str:
    trainer = trainer_of("gptj", ParallelPlan(dp_shard=2))
    return said(Checkpoints(checkpoint.parent).load, trainer, checkpoint)


def test_each_file_is_checked_by_one_of_the_ranks(tmp_path: Path) -> None:
    pool(2).run(saved, tmp_path)
    checkpoint = tmp_path / "step-00000000"
    names = json.loads((checkpoint / MANIFEST).read_text())["files"]
    assert len(names) == 5  # of tensors and of random streams two each, and where the tensors lie
    for path in (checkpoint / name for name in names):
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        for words in pool(2).run(refusal, checkpoint):
            assert words.startswith(f"{path} is damaged: its checksum differs")
        path.write_bytes(before)
