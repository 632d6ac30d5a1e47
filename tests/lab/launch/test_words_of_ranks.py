"""What is told of a rank that failed, out of what it left on stderr."""

import json
from pathlib import Path

import pytest

from helpers.lab.runs.failure_report import explain

TRACEBACK = (
    'Traceback (most recent call last):\n  File "a.py", line 5, in main\n    step()\n    ~~~~^^\n'
)
UNSUPPORTED = "Unsupported: branching\n  Hint: rewrite\n\nfrom user code:\n"
UNSUPPORTED += (
    '   File "m.py", line 3, in forward\n    if x.sum() > 0:\n\nSet TORCHDYNAMO_VERBOSE=1\n'
)
WATCHDOG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=418, OpType=ALLREDUCE)"
FRAMES = "Exception raised from checkTimeout at x.cpp:618 (most recent call first):\n"
FRAMES += "".join(
    f"frame #{n}: c10d::watchdogHandler() + 0x{n} (0x7f in x.so)\n" for n in range(20)
)
CRASH = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
CRASH += "".join(f'  File "a.py", line {n} in f{n}\n' for n in range(20)) + "\nExtension modules: x"


def told(logs: Path, code: int, stderr: str) -> str:
    """The report on one rank that ended with this code, after these words."""
    folder = logs / "id" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text(stderr)
    failure = {"rank": 0, "exit_code": code, "closed": False}
    (logs / "failures.json").write_text(json.dumps([failure]))
    return explain(logs, logs, 1, []).message


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (f"{TRACEBACK}ValueError: they do not fit:\n  - layer 1\n", "ValueError: they do not fit:"),
        (TRACEBACK + UNSUPPORTED, "Unsupported: branching"),
        (f"{TRACEBACK}OutOfMemoryError: CUDA out of memory.\n", "OutOfMemoryError: CUDA out of"),
        (f"{TRACEBACK}ChildFailedError: \n====\na.py FAILED\n", "ChildFailedError: "),
        (f"{TRACEBACK}RuntimeError: of a worker\nOriginal {TRACEBACK}KeyError: 1", "KeyError: 1"),
    ],
)
def test_an_error_is_named_by_the_line_below_its_last_frame(stderr, words, tmp_path):
    assert told(tmp_path, 1, stderr).startswith(f"rank 0 failed: {words}")


@pytest.mark.parametrize(
    ("code", "stderr", "first", "absent"),
    [
        (-6, f"[rank0]:[E1] {WATCHDOG}\n{FRAMES}\n", f"[E1] {WATCHDOG}", "frame #"),
        (-11, CRASH, "Fatal Python error: Segmentation fault", "in f19"),
    ],
)
def test_of_a_crash_the_words_are_shown_and_not_native_frames(
    code, stderr, first, absent, tmp_path
):
    lines = told(tmp_path, code, stderr).splitlines()
    assert lines[1:3] == ["Its last lines:", first] and absent not in "\n".join(lines)


@pytest.mark.parametrize(("recorded", "code"), [(True, 1), (False, -15)])
def test_a_rank_that_is_ended_after_its_error_has_the_code_of_an_error(recorded, code, tmp_path):
    """Another notices the loss and ends first, and torchrun closes the one that failed."""
    folder = tmp_path / "id" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    if recorded:
        words = {"message": "ValueError: boom", "extraInfo": {"py_callstack": TRACEBACK}}
        (folder / "error.json").write_text(json.dumps({"message": words}))
    failure = {"rank": 0, "exit_code": -15, "closed": True}
    (tmp_path / "failures.json").write_text(json.dumps([failure]))
    assert explain(tmp_path, tmp_path, 1, []).exit_code == code
