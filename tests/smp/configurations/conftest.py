"""A file written by a test, and read."""

import pytest

from helpers.configurations import read_configuration


@pytest.fixture
def read(tmp_path):
    def of(text, name, ranks=None, program=None):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return read_configuration(path, ranks, program)

    return of
