"""How a rank's process begins and ends: it is told a rank that can be, or one line says what not;
its words and its exit code are kept, and nothing is shut down."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import (
    check_environment,
    distributed,
    is_same_on_all,
    largest_over_ranks,
    on_all_ranks,
    pick_device,
    store_at,
    world_size,
)
from tests.support.ranks import pool
from tests.support.refusals import said

ROOT = Path(__file__).resolve().parents[2]
WHOLE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
JOIN = """
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import distributed
try:
    with distributed(ParallelPlan()):
        print("joined")
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "5"}, "RANK=5, WORLD_SIZE=1"),
        ({"RANK": "-1"}, "RANK is '-1': it must be a whole number"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"WORLD_SIZE": "0"}, "RANK=0, WORLD_SIZE=0"),
        ({"WORLD_SIZE": "2.0"}, "WORLD_SIZE is '2.0'"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE is '²'"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0"),
        ({"RANK": None}, "WORLD_SIZE is set and RANK is not"),
        ({"MASTER_ADDR": None}, "WORLD_SIZE is set and MASTER_ADDR is not"),
    ],
)
def test_what_cannot_be_is_one_line(change, words):
    variables = {name: value for name, value in (WHOLE | change).items() if value is not None}
    assert words in said(check_environment, variables)


def test_without_torchrun_there_is_one_process():
    assert (world_size({}), world_size({"WORLD_SIZE": "4"})) == (1, 4)
    with pytest.raises(UserError, match="WORLD_SIZE is 'x'"):
        world_size({"WORLD_SIZE": "x"})


@pytest.mark.parametrize(
    ("kind", "gpus", "local", "found"),
    [
        ("auto", 0, "1", "cpu"),
        ("auto", 2, None, "cuda:0"),
        ("auto", 2, "1", "cuda:1"),
        ("cpu", 2, "7", "cpu"),
        ("cuda", 8, "3", "cuda:3"),
    ],
)
def test_a_rank_has_a_gpu_of_its_own_or_the_processor(monkeypatch, kind, gpus, local, found):
    pretend(monkeypatch, gpus, local)
    assert str(pick_device(kind)) == found


@pytest.mark.parametrize(
    ("kind", "gpus", "local", "words"),
    [
        ("auto", 1, "1", "GPUs of this machine: 1, ranks on it: 4"),
        ("cuda", 0, None, "GPUs of this machine: 0, ranks on it: 4"),
        ("auto", 1, "one", "LOCAL_RANK is 'one'"),
        ("gpu", 1, None, "a device is one of auto, cpu, cuda, not 'gpu'"),
        (None, 0, None, "a device is one of auto, cpu, cuda, not None"),
    ],
)
def test_a_device_that_there_is_not_is_one_line(monkeypatch, kind, gpus, local, words):
    pretend(monkeypatch, gpus, local)
    assert words in said(pick_device, kind)


def pretend(monkeypatch: pytest.MonkeyPatch, gpus: int, local: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    if local is None:
        monkeypatch.delenv("LOCAL_RANK", raising=False)
    else:
        monkeypatch.setenv("LOCAL_RANK", local)


def test_one_process_needs_none_of_them():
    check_environment({})
    check_environment({"RANK": "7"})
    check_environment(WHOLE)


def test_a_port_that_is_taken_is_one_line():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = subprocess.run(
            [sys.executable, "-c", JOIN],
            env=WHOLE | {"MASTER_PORT": str(port), "PATH": ""},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"the ranks cannot meet at 127.0.0.1 port {port}: ")
    assert len(said.stdout.splitlines()) == 1


def test_a_store_at_a_port_that_is_taken_is_refused():
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(OSError, match="Address already in use"):
        store_at("127.0.0.1", taken.getsockname()[1])


def test_a_plan_of_more_processes_than_were_started_is_one_line(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match=r"the plan needs 2 processes .* but 1 was started"):
        distributed(ParallelPlan(tp=2), torch.device("cpu")).__enter__()


def agreed(failing: tuple[int, ...]) -> list[int] | str:
    """What all ranks know of a work that some of them cannot do."""

    def work() -> int:
        if dist.get_rank() in failing:
            raise UserError(f"rank {dist.get_rank()} cannot")
        return 10 * dist.get_rank()

    try:
        return on_all_ranks(work)
    except UserError as error:
        return str(error)


@pytest.mark.parametrize(
    ("failing", "known"), [((), [0, 10]), ((1,), "rank 1 cannot"), ((0, 1), "rank 0 cannot")]
)
def test_what_fails_on_one_rank_fails_on_all(failing, known):
    assert pool(2).run(agreed, failing) == [known] * 2


def compared() -> tuple[int, bool, bool]:
    rank = dist.get_rank()
    return (
        largest_over_ranks(-(2**40) - rank),
        is_same_on_all(b"same"),
        is_same_on_all(b"%d" % rank),
    )


def test_the_largest_number_and_the_same_bytes():
    assert pool(2).run(compared) == [(-(2**40), True, False)] * 2


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
