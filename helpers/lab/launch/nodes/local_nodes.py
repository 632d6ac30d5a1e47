"""Several nodes on one machine: an agent of torchrun for each, and what a cluster does for them.

    guard --> here --> guard --> torchrun_agent.py --> ranks     node 0
                   --> guard --> torchrun_agent.py --> ranks     node 1

The agents meet by rendezvous at a store that is kept here, so that either may be lost. One that is
killed is started again, as a cluster's scheduler does it, while restarts are left; the guard of its
node has ended its ranks by then, and torchrun starts those of the others anew. When a node fails
for good, the others get a moment to say what they know and are ended.

    python -m helpers.lab.launch.nodes.local_nodes NODES_AS_JSON TORCHRUN_ARGUMENT...
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.lab.launch import process_guard as guard
from helpers.lab.launch.nodes.network_namespaces import DEVICE, Link, Network, joined

# A node is taken for lost after so many seconds without a sign; torchrun's default is 15.
LOST_S = 5
# Agents are ranked by their addresses, so rank 0 is always on node 0.
LOOPBACK = "127.0.0.{}"


@dataclass(frozen=True)
class Nodes:
    """What is started.

    restarts: agents that may be started again, and times that each may restart its ranks.
    logs: the folder in which each node gets one, node-0 and so on.
    grace_s: between SIGTERM and SIGKILL.
    link: between the nodes, each in a network of its own; None: all on loopback.
    """

    count: int
    nproc: int
    restarts: int
    logs: str
    grace_s: float
    link: Link | None = None

    def command(self, torchrun: Sequence[str]) -> list[str]:
        """What starts them all, with these arguments of torchrun for each."""
        return [sys.executable, "-m", __name__, json.dumps(asdict(self)), *torchrun]


class _Node:
    """One agent, beneath a guard."""

    def __init__(self, nodes: Nodes, number: int, network: Network | None) -> None:
        self.nodes, self.number, self.network = nodes, number, network
        self.folder = Path(nodes.logs) / f"node-{number}"
        self.folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def marker(self) -> str:
        """The guard of a node finds this node's processes alone by it, that of the run all."""
        return f"{os.environ[guard.MARKER]}.{self.number}."

    @property
    def code(self) -> int | None:
        """None while it runs; above 128 for a signal."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def address(self) -> str:
        return self.network.address if self.network else LOOPBACK.format(self.number + 1)

    def start(self, meet: str, restarts: int, torchrun: Sequence[str]) -> None:
        """`meet` is the store's host and port."""
        grace = str(self.nodes.grace_s)
        agent = [
            "-m",
            "helpers.lab.launch.torchrun_agent",
            str(self.folder / "failures.json"),
            grace,
        ]
        rendezvous = [
            f"--nnodes={self.nodes.count}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={meet}",
            f"--rdzv-conf=is_host=0,keep_alive_interval=1,keep_alive_max_attempt={LOST_S}",
            f"--rdzv-id={os.environ[guard.MARKER]}",
            f"--local-addr={self.address}",
            f"--max-restarts={restarts}",
            f"--log-dir={self.folder}",
        ]
        prefix = self.network.prefix if self.network else []
        self.process = subprocess.Popen(
            [
                *[*prefix, sys.executable, "-I", "-S", guard.__file__, grace],
                *[sys.executable, *agent, *rendezvous, *torchrun],
            ],
            stdin=subprocess.PIPE,
            env={**os.environ, **self._variables()},
        )

    def _variables(self) -> dict[str, str]:
        # torch keeps using rank 0's shared store after its agent was replaced, which took it along
        variables = {guard.MARKER: self.marker, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if self.network:
            variables |= {"GLOO_SOCKET_IFNAME": DEVICE, "NCCL_SOCKET_IFNAME": DEVICE}
        return variables | devices(self.number, self.nodes)

    def end(self) -> None:
        """Its guard takes the closed pipe for the order to end all, unless it was killed itself."""
        self.process.stdin.close()
        self.process.wait()
        guard.end_all(lambda: guard.family(self.marker), self.nodes.grace_s)


def devices(number: int, nodes: Nodes) -> dict[str, str]:
    """The variable that gives a node its own part of this machine's GPUs, where there are any.

    Raises:
        UserError: there are too few for all nodes.
    """
    import torch

    count, needed = torch.cuda.device_count(), nodes.count * nodes.nproc
    if count == 0:
        return {}
    if count < needed:
        raise UserError(
            f"{nodes.count} nodes of {nodes.nproc} ranks need {needed} GPUs, but there are {count}"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
    of_node = visible.split(",")[number * nodes.nproc : (number + 1) * nodes.nproc]
    return {"CUDA_VISIBLE_DEVICES": ",".join(of_node)}


def run(nodes: Nodes, torchrun: Sequence[str]) -> int:
    """Start all nodes and stay until they have ended; 0 where all ended well."""
    from helpers.engine.ranks import store_at  # not at the top: torch takes a second

    with ExitStack() as stack:
        networks = stack.enter_context(joined(nodes.link)) if nodes.link else [None] * nodes.count
        if networks[0]:
            networks[0].enter()  # the store must be where the nodes can reach it
        all_nodes = [_Node(nodes, number, network) for number, network in enumerate(networks)]
        host = all_nodes[0].address
        store = store_at(host)
        meet = f"{host}:{store.port}"
        for node in all_nodes:
            node.start(meet, nodes.restarts, torchrun)
            stack.callback(node.end)
        return _follow(all_nodes, nodes, meet, torchrun)


def _follow(all_nodes: Sequence[_Node], nodes: Nodes, meet: str, torchrun: Sequence[str]) -> int:
    restarts = nodes.restarts
    while any(node.code != 0 for node in all_nodes):
        failed = next((node for node in all_nodes if node.code), None)
        if failed is None:
            time.sleep(0.1)
            continue
        if failed.code <= 128:  # its ranks failed, and restarting them has not helped
            _wait(all_nodes, 2 * nodes.grace_s)
            return 1
        if restarts == 0 or any(node.code == 0 for node in all_nodes):
            lost = [{"node": failed.number, "exit_code": 128 - failed.code}]
            (Path(nodes.logs) / "failures.json").write_text(json.dumps(lost))
            return 1
        restarts -= 1
        words = f"the agent of node {failed.number} was killed by signal {failed.code - 128}"
        print(f"{words} and is started again; restarts left: {restarts}", flush=True)
        failed.end()
        failed.start(meet, restarts, torchrun)
    return 0


def _wait(all_nodes: Sequence[_Node], seconds: float) -> None:
    """Until all have ended by themselves, or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(node.code is None for node in all_nodes):
        time.sleep(0.05)


def main() -> int:
    values = json.loads(sys.argv[1])
    link = values.pop("link")
    try:
        return run(Nodes(**values, link=link and Link(**link)), sys.argv[2:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
