"""Nodes with a network of their own on one machine, joined by a link of a stated pace.

    with joined(Link(mbit=400)) as networks:
        subprocess.Popen([*networks[0].prefix, "iperf3", "--server"])
        subprocess.Popen([*networks[1].prefix, "iperf3", "--client", networks[0].address])

Each node is a network namespace of Linux. None has a name: a namespace lives as long as a process
in it, and its end of the link with it. The process that holds it ends when the pipe from this one
closes, so nothing can be left over, whatever ends us.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers.engine.errors import UserError

DEVICE = "wire"  # the name of the end of the link inside each node
BURST_BYTES = 128 * 1024  # that may leave at once: two of the largest packets that Linux hands on
QUEUE_S = 0.05  # a packet that would wait longer is dropped
MTU_BYTES = 9000  # of clusters' networks; smaller packets would cost this machine's cores
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Link:
    """What each direction of a link carries.

    mbit: 10^6 bits per second.
    delay_ms: that a packet takes from one end to the other, one way.
    """

    mbit: float
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.mbit > 0 or not self.delay_ms >= 0:
            raise UserError(
                f"a link of {self.mbit} Mbit/s and {self.delay_ms} ms: the first must be above 0, "
                "the second not below it"
            )

    @property
    def discipline(self) -> str:
        """How `tc` makes it so; a delay needs the kernel's module sch_netem."""
        if self.delay_ms:
            return f"netem rate {self.mbit}mbit delay {self.delay_ms}ms limit 10000"
        return f"tbf rate {self.mbit}mbit burst {BURST_BYTES} latency {QUEUE_S}s"


@dataclass(frozen=True)
class Network:
    """One node's: the process that holds its namespace, and its address on the link."""

    holder: int
    address: str

    @property
    def prefix(self) -> list[str]:
        """Before a command that is to run in it."""
        return ["nsenter", f"--net=/proc/{self.holder}/ns/net"]

    def enter(self) -> None:
        """Move the calling thread, and what it starts from now on, into the node."""
        with open(f"/proc/{self.holder}/ns/net") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def sent_bytes(self) -> int:
        """That have left over the link so far, headers and all, as the interface counts them."""
        for line in Path(f"/proc/{self.holder}/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == DEVICE:
                return int(counters.split()[8])
        raise RuntimeError(f"the network of process {self.holder} has no link")


@contextmanager
def joined(link: Link) -> Iterator[tuple[Network, Network]]:
    """Two networks joined by `link`, gone afterwards with whatever is still in them cut off.

    Raises:
        UserError: this machine cannot, and why.
    """
    _check_tools()
    with ExitStack() as stack:
        first, second = (
            Network(stack.enter_context(_namespace()), address)
            for address in ("10.77.0.1", "10.77.0.2")
        )
        pair = f"link add {DEVICE} type veth peer name {DEVICE} netns {second.holder}"
        _run(first, "ip", pair, "join two networks")
        for network in (first, second):
            _run(network, "ip", "link set lo up", "start a network")
            _run(network, "ip", f"addr add {network.address}/30 dev {DEVICE}", "give an address")
            _run(network, "ip", f"link set {DEVICE} up mtu {MTU_BYTES}", "start a link")
            what = f"make a link of {link.mbit} Mbit/s"
            if link.delay_ms:
                what += f" and {link.delay_ms} ms (a delay needs the kernel's sch_netem)"
            _run(network, "tc", f"qdisc add dev {DEVICE} root {link.discipline}", what)
        yield first, second


def check(link: Link) -> None:
    """See that this machine can make the link, by making it.

    Raises:
        UserError: it cannot, and why.
    """
    with joined(link):
        pass


@contextmanager
def _namespace() -> Iterator[int]:
    """A process that does nothing but hold a network namespace, and ends with ours."""
    # it answers once it is in its namespace; without a right to make one it ends instead
    command = ["unshare", "--net", "sh", "-c", "echo there; exec cat >/dev/null"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        if process.stdout.readline() != "there\n":
            words = process.stderr.read().strip()
            raise UserError(f"cannot make a network namespace, which root can: {words}")
        yield process.pid
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def _check_tools() -> None:
    if not sys.platform.startswith("linux"):
        raise UserError("a link between nodes needs Linux: leave it out for nodes on loopback")
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            raise UserError(f"a link between nodes needs `{tool}`: install {package}")


def _run(network: Network, tool: str, words: str, what: str) -> None:
    done = subprocess.run(
        [*network.prefix, tool, *words.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode != 0:
        said = " ".join(done.stderr.split())
        raise UserError(f"cannot {what}: {tool} says {said!r}")
