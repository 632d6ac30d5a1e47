"""Where the processes of a run listen while it runs: on loopback, or on their own link, alone."""

import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from helpers.engine.ranks import store_at
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from tests.lab.launch.test_launch import FAULT, ROOT
from tests.lab.launch.test_two_nodes import LINK, needs_link
from tests.support.waiting import wait_for

LISTENS = "0A"

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="sockets are read from /proc"
)
pytestmark = needs_proc  # ranks that calibrate are looked at in tests/planner/measure


def addresses(process: psutil.Process) -> set[str]:
    """Where a process listens, as its own network sees it."""
    folder = Path(f"/proc/{process.pid}")
    try:
        own = {str(path.readlink()) for path in (folder / "fd").iterdir()}
        tables = [(folder / "net" / name).read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it has ended meanwhile
        return set()
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {_address(row[1]) for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in own}


def _address(text: str) -> str:
    """An entry of /proc/net/tcp: words of 32 bits in this machine's order, then the port."""
    digits = text.partition(":")[0]
    words = (digits[at : at + 8] for at in range(0, len(digits), 8))
    return str(ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words)))


def below(but: Collection[psutil.Process] = ()) -> set[str]:
    """Where the processes that this one started listen, but for some."""
    children = set(psutil.Process().children(recursive=True))
    return set().union(*map(addresses, children.difference(but)))


@contextmanager
def looked_at(out: Path, ranks: int = 2) -> Iterator[set[str]]:
    """Where what the block starts listens while its ranks are together."""
    found: set[str] = set()
    others = psutil.Process().children(recursive=True)  # of other tests

    def look() -> None:
        logs = lambda: [path.read_text() for path in out.glob("logs/**/stdout.log")]  # noqa: E731
        try:
            wait_for(lambda: sum("together" in log for log in logs()) == ranks, 90)
            found.update(below(others))
        finally:
            (out / "seen").touch()

    looking = threading.Thread(target=look)
    looking.start()
    yield found
    looking.join()


def test_ranks_of_one_node(tmp_path):
    with looked_at(tmp_path) as found:
        launch(FAULT, nproc=2, out=tmp_path, show=False, fault="meets")
    assert found == {"127.0.0.1"}


def test_warm_ranks(tmp_path):
    with looked_at(tmp_path) as found, closing(Ranks(2)) as ranks:
        launch(FAULT, nproc=2, out=tmp_path, show=False, ranks=ranks, fault="meets")
    assert found == {"127.0.0.1"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_nodes(tmp_path):
    with looked_at(tmp_path) as found:
        launch(FAULT, nodes=2, out=tmp_path, show=False, fault="meets")
    assert found == {"127.0.0.1"}


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_link
def test_two_nodes_over_a_link(tmp_path):
    with looked_at(tmp_path) as found:
        launch(FAULT, nodes=2, link=LINK, out=tmp_path, show=False, fault="meets")
    assert found == {"10.77.0.1", "10.77.0.2"}


def test_the_test_sees_what_torchrun_opens_to_everybody(tmp_path):
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    logs = ["--log-dir", str(tmp_path / "logs"), "--redirects", "3"]
    with looked_at(tmp_path) as found:
        subprocess.run([*run, *logs, FAULT, "--fault", "meets", "--out", tmp_path], cwd=ROOT)
    assert "::" in found or "0.0.0.0" in found


def test_a_store_has_one_address():
    store = store_at("127.0.0.1")
    store.set("key", "value")
    with socket.create_connection(("127.0.0.1", store.port), 5):
        pass
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", store.port), 5)
