"""A file written by a test, and read."""

import pytest

from helpers.configurations import read_configuration


@pytest.fixture
def read(file):
    def of(text, name, ranks=None, program=None):
        return read_configuration(file(text, name), ranks, program)

    return of
