"""torchrun, with its verdict on the ranks as a file: what `launch` runs beneath its guard.

torchrun reports a failure as text for a person. Here the same `torch.distributed.run` runs, and the
failures are written as JSON, one entry per rank: rank, exit_code (negative: a signal), pid, and
`closed`, which tells the ranks that torchrun itself ended because another one had failed. And the
stores that the agent hosts listen at their own address, not on every interface (see `store_at`).

    python -m helpers.lab.launch.torchrun_agent FAILURES.json GRACE_S TORCHRUN_ARGUMENT...
"""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as first_store
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

from helpers.engine.ranks import store_at


class _Closing(logging.Handler):
    """Hears whom torchrun closes after a failure, and does not let them take 30 s over it.

    torchrun waits that long for a rank that ignores SIGTERM, and offers no setting for it.
    """

    def __init__(self, grace_s: float) -> None:
        super().__init__(logging.WARNING)
        self.grace_s = grace_s
        self.pids: set[int] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if "closing signal" in record.msg and record.args:
            pid = int(record.args[0])
            if pid not in self.pids:
                self.pids.add(pid)
                timer = threading.Timer(self.grace_s, _kill_if_alive, [pid])
                timer.daemon = True
                timer.start()


def _kill_if_alive(pid: int) -> None:
    with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
        # macOS has no waitid before Python 3.13. Where there is one, it raises for a child that
        # torchrun has waited for already, whose number may by now be somebody else's.
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(pid, signal.SIGKILL)


def _listen_at_own_address() -> None:
    """In both places where torchrun makes a store: one for the agents, then one for the ranks."""

    def first(host: str, port: int, *, is_master: bool, timeout: timedelta, **_: Any) -> TCPStore:
        make = store_at if is_master else TCPStore
        return make(host, port, timeout=timeout)

    first_store.TCPStore = first
    DynamicRendezvousHandler._create_tcp_store_server = lambda _, host, port: store_at(host, port)


def main() -> int:
    _listen_at_own_address()
    path, grace_s, arguments = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    closing = _Closing(grace_s)
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addHandler(closing)
    try:
        torchrun.run(torchrun.parse_args(arguments))
    except ChildFailedError as error:
        failures = [
            {
                "rank": rank,
                "exit_code": failure.exitcode,
                "pid": failure.pid,
                "closed": failure.pid in closing.pids,
            }
            for rank, failure in error.failures.items()
        ]
        try:
            path.write_text(json.dumps(failures))
        except OSError as error:
            print(f"error: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
