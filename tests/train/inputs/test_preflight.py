"""What --preflight does with what it finds."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.engine.errors import UserError
from helpers.train import preflight

SLOW = SimpleNamespace(words="rank 1 is slow", slower=True)
ODD = SimpleNamespace(words="all are odd", slower=False)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch):
    """Call it with findings: the warnings where the ranks have these."""
    monkeypatch.setattr(preflight, "examine", lambda out, device: None)
    monkeypatch.setattr(preflight, "expected_rates", lambda found, record: record)

    def call(findings: list, says: str | None) -> list[str]:
        monkeypatch.setattr(preflight, "judge", lambda found, rates: findings)
        args = Namespace(preflight=says, preflight_record=None, out=Path())
        return preflight.preflight(args, torch.device("cpu"))

    return call


def test_slow_ranks_alone_are_refused(found) -> None:
    with pytest.raises(UserError, match="preflight: rank 1 is slow \\("):
        found([ODD, SLOW], "refuse")
    assert found([ODD], "refuse") == ["preflight: all are odd"]
    assert found([SLOW], "warn") == ["preflight: rank 1 is slow"]
    assert found([SLOW], None) == []


def test_ranks_are_held_against_the_record_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "examine", lambda out, device: None)
    monkeypatch.setattr(preflight, "load_cluster", lambda path: f"record of {path}")
    monkeypatch.setattr(preflight, "expected_rates", lambda found, record: record)

    def judged(found: object, rates: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(words=rates, slower=False)]

    monkeypatch.setattr(preflight, "judge", judged)
    args = Namespace(preflight="warn", preflight_record="file", out=Path())
    assert preflight.preflight(args, torch.device("cpu")) == ["preflight: record of file"]
