"""Long-lived process groups, one a peer, that sleep until they are told to take some steps.

    group = Group(peer, work, cores=2)      # starts, loads the model, answers when it is ready
    result = group.steps([0, 1])            # takes these two steps; every other group sleeps

A group that waits is stopped (SIGSTOP), since the threads of its process groups would wake a
hundred times a second otherwise. So the peers can alternate on the same cores without the cost of
starting them again, and a drift of the machine meets all of them alike.
"""

import contextlib
import importlib
import multiprocessing as mp
import os
import signal
import socket
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.registry import Peer
from benchmarks.work import Work, batches
from helpers.engine.ranks.leaving import die_with_parent
from helpers.lab.launch.nodes.network_namespaces import DEVICE, Network

START_S, STEP_S = 600, 300  # how long a group may take to start, and to take one step


class PeerFailed(Exception):
    """One line that says why a peer has no result."""


@dataclass(frozen=True)
class Result:
    """Some steps of a group.

    step_s: of each step, the slowest rank's wall time.
    loss: of each step, the mean over ranks of what they report.
    norm: of each step, the gradient norm before clipping; None where the peer does not say.
    cpu_s: processor time of all ranks over all the steps.
    """

    step_s: list[float]
    loss: list[float]
    norm: list[float | None]
    cpu_s: float


class Group:
    """The processes of one peer, the first half of them on the first node where there are two."""

    def __init__(
        self, peer: Peer, work: Work, cores: int, networks: Sequence[Network] = ()
    ) -> None:
        self.peer = peer
        self.threads = max(1, cores // peer.ranks)
        self.folder = tempfile.TemporaryDirectory(prefix=f"benchmark-{peer.name}-")
        # ranks are forked from a process that has imported torch and transformers and nothing else,
        # so they start fast and no peer's libraries reach another
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["torch", "transformers"])
        self.processes, self.pipes = [], []
        facts = {"WORLD_SIZE": str(peer.ranks), "OMP_NUM_THREADS": str(self.threads)}
        facts |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        facts["LOCAL_WORLD_SIZE"] = str(peer.ranks // max(1, len(networks)))
        if networks:
            facts["GLOO_SOCKET_IFNAME"] = DEVICE
        for rank in range(peer.ranks):
            ours, theirs = context.Pipe()
            facts |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            network = networks[rank * len(networks) // peer.ranks] if networks else None
            arguments = (peer, work, dict(facts), self.folder.name, theirs, network)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self.facts = self._answers(START_S)
        self._signal(signal.SIGSTOP)

    def steps(self, indices: list[int]) -> Result:
        """Take the steps with these numbers.

        Raises:
            PeerFailed: a rank failed, died or hung. The group is closed.
        """
        answers = self._ask("steps", indices, STEP_S * len(indices))
        per_step = range(len(indices))
        return Result(
            step_s=[max(answer["step_s"][i] for answer in answers) for i in per_step],
            loss=[sum(answer["loss"][i] for answer in answers) / len(answers) for i in per_step],
            norm=[answers[0]["norm"][i] for i in per_step],
            cpu_s=sum(answer["cpu_s"] for answer in answers),
        )

    def memory(self) -> list[dict[str, int]]:
        """Bytes by rank: resident before the model and at the peak since, and the state's."""
        return self._ask("memory", None, STEP_S)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        for pipe in self.pipes:
            pipe.close()  # a rank that waits for work ends by itself
        for process in self.processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self.folder.cleanup()

    def _ask(self, what: str, argument: Any, seconds: float) -> list[Any]:
        self._signal(signal.SIGCONT)
        try:
            for pipe in self.pipes:
                pipe.send((what, argument))
        except OSError:
            pass  # a rank died: the answers say how
        answers = self._answers(seconds)
        self._signal(signal.SIGSTOP)
        return answers

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _answers(self, seconds: float) -> list[Any]:
        found: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while len(found) < len(self.pipes):
            waiting = [pipe for rank, pipe in enumerate(self.pipes) if rank not in found]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(f"no answer within {seconds} s")
            for pipe in ready:
                try:
                    kind, value = pipe.recv()
                except (EOFError, OSError):
                    kind, value = "failed", "a rank died"
                if kind == "failed":
                    self._fail(value)
                found[self.pipes.index(pipe)] = value
        return [found[rank] for rank in range(len(self.pipes))]

    def _fail(self, reason: str) -> None:
        for process in self.processes:
            process.kill()  # the others may wait for it for ever
        self.close()
        raise PeerFailed(reason)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(
    peer: Peer,
    work: Work,
    facts: dict[str, str],
    folder: str,
    pipe: Connection,
    network: Network | None,
) -> None:
    """A rank: make the peer's step function, then take steps as they are asked for."""
    die_with_parent()  # stopped, it would not see that the pipe is closed
    os.environ |= facts
    if network:
        network.enter()
    log = open(Path(folder) / f"rank{facts['RANK']}.log", "w", buffering=1)  # noqa: SIM115 for good
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        base, step = _prepare(peer, work, folder)
        pipe.send(("ready", {"pid": os.getpid()}))
        ids = batches(work)
        while True:
            what, argument = pipe.recv()
            if what == "steps":
                pipe.send(("done", _take(step, ids[argument])))
            else:
                pipe.send(("done", {"base": base, "peak": _resident("VmHWM"), **step.state()}))
    except EOFError:
        return  # the parent is done with us, or gone
    except ModuleNotFoundError as error:
        pipe.send(("failed", f"{error.name} is not installed"))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        pipe.send(("failed", f"{type(error).__name__}: {lines[0]}"))


def _prepare(peer: Peer, work: Work, folder: str) -> tuple[int, Any]:
    import torch
    import torch.distributed as dist
    import transformers

    rank = int(os.environ["RANK"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    if peer.ranks > 1 or peer.joins:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=peer.ranks)
    make = importlib.import_module(f"benchmarks.peers.{peer.module}").Peer
    base = _resident("VmRSS")
    _reset_peak()
    return base, make(work, rank, peer.ranks, **peer.options)


def _take(step: Any, some_ids: Any) -> dict[str, Any]:
    step_s, losses, norms = [], [], []
    cpu = time.process_time()
    for ids in some_ids:
        began = time.perf_counter()
        loss, norm = step(ids)
        step_s.append(time.perf_counter() - began)
        losses.append(loss)
        norms.append(norm)
    return {"step_s": step_s, "loss": losses, "norm": norms, "cpu_s": time.process_time() - cpu}


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) of this process in bytes, 0 where the system has no /proc."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
