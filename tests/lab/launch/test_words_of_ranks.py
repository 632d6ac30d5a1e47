"""What is told of ranks that failed, out of what they and torchrun left on disk."""

import json
import os
import time
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


def write_failures(logs: Path, *ranks: tuple[int, bool, str]) -> None:
    """What torchrun_agent.py leaves behind; per rank: exit code, closed by torchrun, stderr."""
    failures = []
    for rank, (code, closed, stderr) in enumerate(ranks):
        folder = logs / "id" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(stderr)
        failures.append({"rank": rank, "exit_code": code, "pid": 1, "closed": closed})
    (logs / "failures.json").write_text(json.dumps(failures))


@pytest.mark.parametrize(
    ("ranks", "rank", "words"),
    [
        ([(-15, True, ""), (3, False, "")], 1, "rank 1 ended with code 3 and wrote nothing to"),
        ([(1, False, "later"), (1, False, "first")], 1, "rank 1 ended with code 1:\nfirst"),
        ([(2, False, ""), (2, False, "a warning\nerror: tp is 3\n")], 0, "tp is 3"),
        ([(2, False, "")], 0, "the script refused its arguments"),
        ([(-9, True, ""), (-11, False, "")], 1, "rank 1 was killed by signal 11 (SIGSEGV)"),
        ([(1, False, "Connection reset"), (-6, False, "")], 1, "rank 1 was killed by signal 6"),
    ],
)  # fmt: skip
def test_the_cause_is_told_from_its_consequences(ranks, rank, words, tmp_path):
    write_failures(tmp_path, *ranks)
    if ranks[0][2] == "later":
        now = time.time_ns()
        os.utime(tmp_path / "id/attempt_0/0/stderr.log", ns=(now, now + 10**6))
        os.utime(tmp_path / "id/attempt_0/1/stderr.log", ns=(now, now))
    error = explain(tmp_path, tmp_path, 1, [])
    assert (error.rank, error.exit_code) == (rank, ranks[rank][0])
    assert error.message.startswith(words)


@pytest.mark.parametrize("words", ["[]", '{"message": null}', '{"message": {"extraInfo": "x"}}'])
def test_words_of_a_program_of_another_shape_hide_no_failure(words, tmp_path):
    write_failures(tmp_path, (1, False, "what happened"))
    (tmp_path / "id/attempt_0/0/error.json").write_text(words)
    assert "what happened" in explain(tmp_path, tmp_path, 1, []).message


@pytest.mark.parametrize(
    ("recorded", "rank"),
    [("RuntimeError: mat1 and mat2", 1), ("Connection closed by peer", 0), (None, 0)],
)
def test_a_rank_that_said_why_is_the_cause_though_torchrun_closed_it(recorded, rank, tmp_path):
    """A machine with much to do: a peer lost its connection, and was seen to end, first."""
    write_failures(tmp_path, (1, False, "Connection closed by peer"), (-15, True, ""))
    if recorded:
        error = tmp_path / "id/attempt_0/1/error.json"
        error.write_text(json.dumps({"message": recorded}))
    found = explain(tmp_path, tmp_path, 1, [])
    assert found.rank == rank
    if rank:
        assert found.message.startswith(f"rank 1 failed: {recorded}")


def test_a_torchrun_that_failed_by_itself_is_quoted(tmp_path):
    error = explain(tmp_path, tmp_path, 1, ["no port is free"])
    assert error.message.splitlines() == [
        "torchrun ended with code 1 before any rank failed",
        "Last lines:",
        "no port is free",
    ]


def told(logs: Path, code: int, stderr: str) -> str:
    """The report on one rank that ended with this code, after these words."""
    write_failures(logs, (code, False, stderr))
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
    write_failures(tmp_path, (-15, True, ""))
    if recorded:
        words = {"message": "ValueError: boom", "extraInfo": {"py_callstack": TRACEBACK}}
        error = tmp_path / "id/attempt_0/0/error.json"
        error.write_text(json.dumps({"message": words}))
    assert explain(tmp_path, tmp_path, 1, []).exit_code == code
