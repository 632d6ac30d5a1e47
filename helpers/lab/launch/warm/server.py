"""The process that warm ranks are forked from: it has imported what every rank needs.

    python -u -m helpers.lab.launch.warm.server SOCKET

A request comes over a Unix socket: a program, its ranks, the environment, the folder of the logs,
and a stream for the merged output. For each the server forks an agent, which forks the ranks, waits
for them as torchrun would, leaves what torchrun leaves on disk, and answers with an exit code. Each
run is in children of its own, so nothing leaks from one to the next. The server itself never runs
an operation and never touches CUDA.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from helpers.engine.ranks import AGENT_HAS_STORE, die_with_parent, store_on
from helpers.lab.launch.command import LOOPBACK
from helpers.lab.launch.process_guard import MARKER

FAMILIES = ("gptj", "gpt2", "gpt_neox", "falcon", "llama")
PRELOADED = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "transformers",
    *(f"transformers.models.{name}.modeling_{name}" for name in FAMILIES),
    "helpers.train.run",
)
LONGEST_REQUEST = 2**20
M_MMAP_THRESHOLD = -3  # of malloc.h


def marker_place() -> int:
    """Where this process's environment, as /proc shows it, holds the marker's value."""
    get = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_void_p
    return get(MARKER.encode())


def serve(path: str) -> None:
    place = marker_place()
    for name in PRELOADED:
        importlib.import_module(name)
    if importlib.import_module("torch").cuda.is_initialized():
        sys.exit("an import has started CUDA, and a process that has cannot be forked")
    gc.collect()
    gc.freeze()  # children share this memory, and their collector passes over it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # agents are not waited for
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen()
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _answer(connection, place)
            connection.close()


def _answer(connection: socket.socket, place: int) -> None:
    """In a fork of the server: one run, from its request to its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        data, (output,), *_ = socket.recv_fds(connection, LONGEST_REQUEST, 1)
        while not data.endswith(b"\n"):
            more = connection.recv(LONGEST_REQUEST)
            if not more:
                sys.exit("a request ended in its middle: its run was stopped")
            data += more
        request = json.loads(data)
        _become_agent(request, output, place)
        code = Agent(request).run()
        connection.sendall(f"{code}\n".encode())
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def _become_agent(request: dict[str, Any], output: int, place: int) -> None:
    """Give this process the session, streams, environment and folder of the run.

    Args:
        output: file descriptor of the merged output.
        place: see `marker_place`.
    """
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    variables = request["environment"]
    # the guard of the run finds its processes by the marker in /proc/<pid>/environ, which a fork
    # has from the server
    ctypes.memmove(place, variables[MARKER].encode(), len(variables[MARKER]))
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(request["folder"])
    sys.path[:] = [*variables["PYTHONPATH"].split(os.pathsep), *sys.path]


class Agent:
    """Starts the ranks of one run and waits for them: torchrun's part."""

    def __init__(self, request: dict[str, Any]) -> None:
        """
        Args:
            request: argv, nproc, logs, failures and grace_s.
        """
        self.argv, self.nproc = request["argv"], request["nproc"]
        self.attempt = Path(request["logs"], "warm", "attempt_0")
        self.failures, self.grace_s = Path(request["failures"]), request["grace_s"]
        self.ranks: dict[int, int] = {}  # process id -> rank
        self.streams = selectors.DefaultSelector()

    def run(self) -> int:
        self.attempt.mkdir(parents=True)
        listening = socket.create_server((LOOPBACK, 0), backlog=socket.SOMAXCONN)
        for rank in range(self.nproc):
            self._start(rank, listening)
        self.store = store_on(listening)  # after the forks: it has a thread
        codes: dict[int, int] = {}  # by process id
        closed: set[int] = set()
        kill_at = float("inf")
        while len(codes) < self.nproc:
            self._copy_output(0.05)
            ended = self._ended()
            codes |= ended
            running = set(self.ranks) - set(codes)
            if any(ended.values()) and not closed:
                closed = set(running)
                kill_at = time.monotonic() + self.grace_s
                _tell(closed, signal.SIGTERM)
            if time.monotonic() > kill_at:
                _tell(running, signal.SIGKILL)
        self._copy_what_is_left()
        failed = {pid: code for pid, code in codes.items() if code}
        if failed:
            rows = [
                {"rank": self.ranks[pid], "exit_code": code, "pid": pid, "closed": pid in closed}
                for pid, code in failed.items()
            ]
            self.failures.write_text(json.dumps(rows))
        return 1 if failed else 0

    def _start(self, rank: int, listening: socket.socket) -> None:
        logs = self.attempt / str(rank)
        logs.mkdir()
        pipes = [os.pipe() for _ in range(2)]
        pid = os.fork()
        if pid == 0:
            os.setsid()
            die_with_parent()  # no rank outlives its agent
            for stream, (_, write) in enumerate(pipes, start=1):
                os.dup2(write, stream)
            port = listening.getsockname()[1]
            listening.close()
            _run(rank, self.nproc, port, logs, self.argv)
        self.ranks[pid] = rank
        for name, (read, write) in zip(("stdout.log", "stderr.log"), pipes):
            os.close(write)
            stream = Stream(rank, (logs / name).open("wb"))
            self.streams.register(read, selectors.EVENT_READ, stream)

    def _ended(self) -> dict[int, int]:
        codes = {}
        for pid in self.ranks:
            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        return codes

    def _copy_output(self, wait_s: float) -> bool:
        """Was there any within `wait_s`?"""
        if not self.streams.get_map():
            time.sleep(wait_s)
            return False
        ready = self.streams.select(wait_s)
        for key, _ in ready:
            if not key.data.copy(os.read(key.fd, 2**16)):
                self.streams.unregister(key.fd)
                os.close(key.fd)
        return bool(ready)

    def _copy_what_is_left(self) -> None:
        """Not to the streams' end: a child that a rank has left may hold them open, or write on,
        until the guard of the run ends it."""
        until = time.monotonic() + self.grace_s
        while self._copy_output(0) and time.monotonic() < until:
            pass
        for key in self.streams.get_map().values():
            key.data.copy(b"")


class Stream:
    """A rank's output: to its own file as it is, and merged with the others' by lines."""

    def __init__(self, rank: int, file: BinaryIO) -> None:
        self.prefix, self.file, self.rest = f"[rank {rank}] ".encode(), file, b""

    def copy(self, data: bytes) -> bool:
        """False at the end."""
        self.file.write(data)
        self.file.flush()
        *lines, self.rest = (self.rest + data).split(b"\n")
        if not data and self.rest:
            lines, self.rest = [self.rest], b""
        if lines:
            merged = b"".join(self.prefix + line + b"\n" for line in lines)
            while merged:
                merged = merged[os.write(1, merged) :]
        if not data:
            self.file.close()
        return bool(data)


def _run(rank: int, nproc: int, port: int, logs: Path, argv: list[str]) -> None:
    """In the rank's process: the program, to its end."""
    import torch

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "0",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        AGENT_HAS_STORE: "True",
        "TORCHELASTIC_RUN_ID": "warm",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": str(logs / "error.json"),
    }
    # what libraries read of the environment when the server loaded them
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if threshold := os.environ.get("MALLOC_MMAP_THRESHOLD_"):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, int(threshold))
    code = 1
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path.insert(0, str(Path(argv[0]).resolve().parent))
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        if isinstance(leaving.code, int | None):
            code = (leaving.code or 0) & 0xFF
        else:
            print(leaving.code, file=sys.stderr)
    except BaseException as error:
        _print_as_python(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _print_as_python(error: BaseException) -> None:
    """The traceback that Python would have printed of the program alone."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)


def _tell(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


if __name__ == "__main__":
    serve(sys.argv[1])
