"""Ranks that are warm: interpreter and imports are paid once, and not in every run.

    ranks = Ranks(4)
    run = launch("scripts/train.py", nproc=2, ranks=ranks, model="gptj-tiny", tp=2, steps=20)

`Ranks` starts one process that imports what ranks need (server.py), and a run's ranks are forked
from it. The rest is as ever: the guard, the logs, the panel, the words of a failure.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path

from helpers.engine.errors import UserError, check_count
from helpers.lab.launch import process_guard as guard
from helpers.lab.launch.command import Job, environment
from helpers.lab.launch.warm import request
from helpers.lab.paths import PACKAGES, ROOT

START_S = 120
GRACE_S = 3.0
# read by a process when it starts, so a fork of one that runs already cannot be given another
READ_AT_START = ("LD_", "GOMP_", "KMP_", "OMP_WAIT_POLICY", "PYTHON", "TORCHINDUCTOR_", "TORCH_")


class Ranks:
    """Up to `count` warm ranks on this machine. Elsewhere than on Linux, where a process that has
    imported torch cannot be forked safely, runs start cold as without them.

    Args:
        env: environment variables that libraries read when they are loaded; they are the same for
            all runs. Others are given to `launch`.

    Raises:
        UserError: fewer than one.
    """

    def __init__(self, count: int, env: Mapping[str, str] | None = None) -> None:
        self.env = dict(env or {})
        self.warm = sys.platform.startswith("linux")
        check_count("Ranks", count)
        self.count = count
        if self.warm:
            self._start()

    def __repr__(self) -> str:
        return f"Ranks({self.count})"

    def command(self, job: Job, grace_s: float) -> list[str]:
        """What the guard of a run that `check` admits starts.

        Raises:
            UserError: the server does not start.
        """
        if self._server.poll() is not None or self._is_outdated():
            self.close()
            self._start()
        self._wait()
        wanted = {
            "argv": job.rank_words,
            "nproc": job.nproc,
            "folder": str(ROOT),
            "logs": str(job.logs),
            "failures": str(job.logs / "failures.json"),
            "grace_s": grace_s,
        }
        python = [sys.executable, "-I", "-S"]
        return [*python, request.__file__, self._socket, json.dumps(wanted)]

    def check(
        self, nproc: int, nodes: int, max_restarts: int, extra: Mapping[str, str] | None
    ) -> None:
        """Raise a UserError if a run cannot be that of these ranks."""
        if nproc > self.count:
            raise UserError(f"nproc is {nproc}, but {self.count} ranks are warm: make more")
        if nodes > 1 or max_restarts:
            raise UserError("warm ranks are on one node and not started again: leave ranks out")
        for name, value in (extra or {}).items():
            if name.startswith(READ_AT_START) and self.env.get(name) != value:
                raise UserError(
                    f"{name} is read when a library is loaded, and warm ranks have loaded theirs: "
                    f"make them with Ranks({self.count}, env={{{name!r}: {value!r}}})"
                )

    def close(self) -> None:
        """End the server; the next run would start it again."""
        if self.warm:
            self._finalizer()

    def _is_outdated(self) -> bool:
        """Has somebody edited the package since it was imported?"""
        files = (PACKAGES / "helpers").rglob("*.py")
        return max(file.stat().st_mtime for file in files) > self._started_at

    def _start(self) -> None:
        self._started_at = time.time()
        folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._socket = os.path.join(folder.name, "socket")
        self._log = Path(folder.name, "log")
        variables = environment(1, {**self.env, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}, None)
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", guard.__file__, str(GRACE_S)),
                    *(sys.executable, "-u", "-m", "helpers.lab.launch.warm.server", self._socket),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
                env={**variables, guard.MARKER: uuid.uuid4().hex},
            )
        self._finalizer = weakref.finalize(self, _end, self._server, folder)

    def _wait(self) -> None:
        """Until the server listens."""
        deadline = time.monotonic() + START_S
        while not os.path.exists(self._socket):
            if self._server.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace").strip().splitlines()
                raise UserError(f"warm ranks did not start: {said[-1] if said else 'no word'}")
            time.sleep(0.02)


def _end(server: subprocess.Popen, folder: tempfile.TemporaryDirectory) -> None:
    server.stdin.close()  # the guard takes this as: end them all
    server.wait()
    folder.cleanup()
