"""The campaign of kills, without a kill: what it starts it ends, and it says what came of it."""

import sys

from tests.support.scripts import script


def test_a_campaign_of_no_kills_ends_well(monkeypatch, capsys):
    """It ended before its first run: warm ranks are closed, and no context."""
    campaign = script("measure/kill_campaign")
    monkeypatch.setattr(campaign, "launch", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["kill_campaign.py", "--kills", "0", "--cuts", "0"])
    assert campaign.main() == 0
    assert "0 kills, 0 cuts, 0 fell short" in capsys.readouterr().out
