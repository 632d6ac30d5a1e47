"""How a rank's process ends: its words and its exit code are kept, and nothing is shut down."""

import subprocess
import sys

import pytest

START = """
import atexit, sys
from helpers.engine.ranks import run_and_leave
atexit.register(print, "shut down")
def main():
    print("said", end=" ")
    {how}
run_and_leave(main)
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [("return", 0), ("sys.exit()", 0), ("sys.exit(2)", 2)],
    ids=["done", "left", "refused"],
)
def test_no_shutdown_that_a_thread_could_abort(how, code):
    ended = subprocess.run([sys.executable, "-c", START.format(how=how)], stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (code, b"said ")


@pytest.mark.parametrize("how", ["sys.exit('too small')", "raise ValueError('too small')"])
def test_a_failure_keeps_its_words(how):
    ended = subprocess.run(
        [sys.executable, "-c", START.format(how=how)], capture_output=True, text=True
    )
    assert ended.returncode == 1 and "too small" in ended.stderr
