"""The part of a product that runs in the whole suite leaves no name out; and what runs of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.matrix import EVERY, each, in_part, product

ROOT = Path(__file__).parents[2]
SUITE = """
import pytest

@pytest.mark.parametrize("case", range(9))
def test_cases(case):
    pass

@pytest.mark.long
def test_long():
    pass

@pytest.mark.exhaustive
def test_rest():
    pass
"""
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=3)


@given(SIZES)
def test_every_name_meets_the_first_of_each_other_list(sizes):
    lists = [[f"{axis}{place}" for place in range(size)] for axis, size in enumerate(sizes)]
    cases = product(*lists)
    part = [case.values for case in cases if not case.marks]
    assert len({case.values for case in cases}) == len(cases)
    for axis, names in enumerate(lists):
        for name in names:
            expected = [each[0] for each in lists]
            expected[axis] = name
            assert tuple(expected) in part


def test_a_part_of_the_others_runs_in_every_row():
    for row in range(1, 10):
        assert sum(in_part((row, column)) for column in range(1, 2 * EVERY + 1)) == 2


@given(SIZES, st.integers(1, 4))
def test_of_each_every_name_runs_or_every_so_many_th_of_the_longest_list(sizes, every):
    lists = [[f"{axis}{place}" for place in range(size)] for axis, size in enumerate(sizes)]
    runs = [case.values for case in each(*lists, every=every) if not case.marks]
    assert len(runs) == -(-max(sizes) // every)
    if every == 1:
        assert all(
            name in {case[axis] for case in runs}
            for axis, names in enumerate(lists)
            for name in names
        )


@pytest.mark.parametrize(
    ("arguments", "run"),
    [
        ((), 3),
        (("-n", "1"), 3),
        (("--whole",), 10),
        (("--exhaustive",), 11),
        (("test_them.py",), 10),
        (("-n", "1", "test_them.py"), 10),
        (("-k", "cases"), 9),
    ],
)
def test_a_command_that_names_no_tests_runs_a_part(tmp_path, arguments, run):
    (tmp_path / "test_them.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *  # noqa\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1].startswith(f"{run} passed"), done.stdout
