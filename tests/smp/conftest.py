"""Files that tests write."""

import pytest


@pytest.fixture
def file(tmp_path):
    """Writes a text to a file of this name, and gives its path."""

    def writing(text, name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path

    return writing
