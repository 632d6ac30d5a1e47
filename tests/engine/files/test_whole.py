"""Files that are there whole or not at all."""

from pathlib import Path

import pytest

from helpers.engine.files.whole import replace_text


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    replace_text(path, "{}\n")
    replace_text(path, '{"ä": 1}\n')
    assert [one.name for one in tmp_path.iterdir()] == ["findings.json"]
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, '{"half": "\ud800"}')
    assert path.read_text(encoding="utf-8") == '{"ä": 1}\n'
