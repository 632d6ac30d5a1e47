"""Two nodes on one machine: they meet, one is lost and comes back, and nothing of them is left."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from helpers.engine.errors import UserError
from helpers.lab.launch.launch import launch
from helpers.lab.launch.nodes import local_nodes as nodes
from helpers.lab.launch.nodes import network_namespaces as network
from helpers.lab.launch.nodes import two_nodes
from helpers.lab.launch.nodes.lost_agent import lost_agent
from helpers.lab.launch.nodes.network_namespaces import DEVICE, Link, joined
from helpers.lab.runs.failure_report import RunFailed, explain
from tests.lab.launch import test_launch
from tests.lab.launch.test_launch import FAULT, marked
from tests.lab.launch.test_words_of_ranks import write_failures
from tests.support import scripts
from tests.support.waiting import wait_for
from tests.train.test_resume import losses

mark = test_launch.mark
STEPS = 12
RUN = {
    "model": "neox-tiny",
    "layers": 2,
    "hidden": 64,
    "steps": STEPS,
    "batch_size": 16,
    "seq_len": 64,
    "dp_shard": 2,
}
LINK = Link(mbit=400)


def linked() -> bool:
    """Whether this machine can make a link."""
    try:
        network.check(LINK)
    except UserError:
        return False
    return True


needs_link = pytest.mark.skipif(not linked(), reason="needs root, iproute2 and network namespaces")


def agents(
    mark: dict[str, str], module: str = "helpers.lab.launch.torchrun_agent"
) -> list[psutil.Process]:
    """The processes of a test that run this module, without the guards above them."""
    return [process for process in marked(mark) if process.cmdline()[1:3] == ["-m", module]]


def links_of(pid: int) -> str:
    return Path(f"/proc/{pid}/net/dev").read_text()


@pytest.mark.slow
@needs_link
def test_they_meet_over_a_link_and_their_output_is_one(tmp_path, mark, capfd):
    run = launch(FAULT, nodes=2, link=LINK, out=tmp_path, env=mark, fault="collective_of_all")
    assert run.state == "done" and 0 < run.before_ranks_s < run.wall_s
    assert marked(mark) == []
    for rank in range(2):
        words = f"rank {rank} of 2, local rank 0, sum 3"
        assert f"{words}, {DEVICE} True" in run.log(rank)
        assert f"[rank {rank}] {words}" in run.log()
    assert "$ torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d" in capfd.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_first_failing_rank_is_quoted_whatever_its_node(tmp_path, mark):
    words = r"^rank 1 failed: ValueError: boom of rank 1\n"
    with pytest.raises(RunFailed, match=words) as caught:
        launch(FAULT, nodes=2, out=tmp_path, env=mark, show=False, fault="collective")
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    assert marked(mark) == []


@pytest.mark.slow
def test_nothing_is_left_when_what_keeps_the_nodes_is_killed(tmp_path, mark):
    def kill() -> None:
        wait_for(lambda: len(list(tmp_path.glob("logs/**/0/stdout.log"))) == 2, 60)
        for process in agents(mark, "helpers.lab.launch.nodes.local_nodes"):
            process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RunFailed, match=r"was killed by signal 9 \(SIGKILL\)"):
        launch(FAULT, nodes=2, out=tmp_path, env=mark, show=False, fault="deaf", timeout_s=90)
    killer.join()
    assert marked(mark) == []


@pytest.mark.exhaustive  # notebook 8 does it
@pytest.mark.slow
def test_a_killed_agent_is_started_again_and_the_losses_are_the_same(tmp_path, mark):
    """That of node 0, which has rank 0 and what the ranks meet at."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    scripts.trained(2, out=whole, **RUN)
    options = {"nodes": 2, "max_restarts": 1, "out": out, "env": mark, "show": False}
    with lost_agent(out, node=0, after_step=6) as lost:
        run = launch("scripts/train.py", **options, **RUN, checkpoint_every=5, resume="auto")
    assert lost.at_step >= 6
    assert "node 0 was killed by signal 9 and is started again; restarts left: 0" in run.log()
    assert losses(out) == losses(whole)
    assert len(run.metrics) == STEPS
    assert marked(mark) == []


def test_a_node_that_no_restart_is_left_for_is_named(tmp_path):
    logs = tmp_path / "logs"
    write_failures(logs / "node-0", (1, False, "Connection reset by peer\n"))
    (logs / "failures.json").write_text(json.dumps([{"node": 1, "exit_code": -9}]))
    error = explain(tmp_path, logs, 1, [])
    first, *_ = error.message.splitlines()
    assert first.startswith("the agent of node 1 was killed by signal 9 (SIGKILL)")
    assert first.endswith("and no restart was left")


SIZE = 2_500_000
EASY = Link(mbit=50)  # a pace that a machine holds which is busy with other things
RECEIVE = """
import socket, time
server = socket.create_server(("10.77.0.1", 5000))
print("listening", flush=True)
taken, _ = server.accept()
began, count = time.monotonic(), 0
while some := taken.recv(1 << 20):
    count += len(some)
print(count, time.monotonic() - began)
"""
SEND = f"""
import socket
socket.create_connection(("10.77.0.1", 5000)).sendall(bytes({SIZE}))
"""


def transfer(first: network.Network, second: network.Network) -> float:
    """The seconds that SIZE bytes take from the second to the first."""
    command = [*first.prefix, sys.executable, "-I", "-S", "-c", RECEIVE]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "listening\n"
    subprocess.run([*second.prefix, sys.executable, "-I", "-S", "-c", SEND], check=True)
    count, seconds = receiver.communicate()[0].split()
    assert int(count) == SIZE
    return float(seconds)


@needs_link
def test_a_link_has_its_pace_and_ends_with_its_holders():
    with joined(EASY) as (first, second):
        before, back = second.sent_bytes(), first.sent_bytes()
        seconds = [transfer(first, second)]
        assert second.sent_bytes() - before == pytest.approx(SIZE, rel=0.02)
        assert first.sent_bytes() - back < 0.02 * SIZE  # what acknowledges it goes the other way
        # A machine that is busy keeps a transfer waiting; no machine makes one quicker.
        seconds += [transfer(first, second) for _ in range(2)]
        assert 8 * SIZE / min(seconds) / 1e6 == pytest.approx(EASY.mbit, rel=0.1)
        holder = first.holder
        assert DEVICE in links_of(holder)
    assert not psutil.pid_exists(holder)
    assert DEVICE not in links_of(psutil.Process().pid)


@needs_link
def test_a_delay_is_kept_or_refused_in_a_line():
    slow = Link(mbit=400, delay_ms=20)
    try:
        network.check(slow)
    except UserError as error:
        assert "a delay needs the kernel's sch_netem" in str(error) and "\n" not in str(error)
        return
    with joined(slow) as (first, second):
        script = f"import socket; socket.create_server(('{first.address}', 5000)).accept()"
        server = subprocess.Popen([*first.prefix, sys.executable, "-I", "-S", "-c", script])
        connect = f"""
import socket, time
while True:
    began = time.monotonic()
    try:
        socket.create_connection(("{first.address}", 5000))
        break
    except ConnectionRefusedError:
        pass
print(time.monotonic() - began)
"""
        command = [*second.prefix, sys.executable, "-I", "-S", "-c", connect]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        server.wait()
    assert 0.04 <= float(done.stdout) < 0.08  # there and back


@needs_link
def test_without_the_right_to_make_networks_a_line_says_so():
    script = """
from helpers.engine.errors import UserError
from helpers.lab.launch.nodes.network_namespaces import Link, check
try:
    check(Link(mbit=400))
except UserError as error:
    print(error)
"""
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot make a network namespace, which root can: unshare")
    assert done.stdout.count("\n") == 1


def test_a_link_must_carry_something():
    with pytest.raises(UserError, match="a link of 0 Mbit/s"):
        Link(mbit=0)


@pytest.mark.parametrize(
    ("count", "given", "expected"),
    [(0, None, {}), (4, None, "2,3"), (4, "7,5,3,1", "3,1"), (3, None, UserError)],
)
def test_each_node_has_its_own_gpus(monkeypatch, count, given, expected):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    two = nodes.Nodes(2, nproc=2, restarts=0, logs="", grace_s=1.0)
    if expected is UserError:
        with pytest.raises(UserError, match="2 nodes of 2 ranks need 4 GPUs, but there are 3"):
            nodes.devices(1, two)
    else:
        assert nodes.devices(1, two) == (expected and {"CUDA_VISIBLE_DEVICES": expected})


def test_a_mistake_in_the_shell_is_a_line_and_exit_code_2(tmp_path, capsys):
    for words, said in (
        (["scripts/none.py", "--out", str(tmp_path)], "there is no script scripts/none.py"),
        ([FAULT, "4"], "'4' is no flag: flags begin with --"),
        (["--nproc", "x", FAULT], "argument --nproc: invalid int value: 'x'"),
    ):
        with pytest.raises(SystemExit) as left:
            two_nodes.main(words)
        assert left.value.code == 2
        assert capsys.readouterr().err.splitlines()[0].startswith(f"error: {said}")
