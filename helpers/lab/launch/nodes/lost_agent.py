"""An agent that dies in the middle of a run, on purpose.

    with lost_agent("runs/one", node=0, after_step=6) as lost:
        launch(..., nodes=2, max_restarts=1, out="runs/one", checkpoint_every=5, resume="auto")
    print(lost.at_step)

It is killed by SIGKILL, as by a machine that is taken away: it can tell nobody. Linux, since the
agent is found in /proc.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.lab.paths import ROOT

POLL_S = 0.05


@dataclass
class Lost:
    """at_step: steps that were written when the agent was killed; None if it was not."""

    at_step: int | None = None


@contextmanager
def lost_agent(out: str | Path, node: int, after_step: int) -> Iterator[Lost]:
    """Kill the agent of `node` of the run in `out` once, after the step has been written.

    Args:
        out: the run's folder, as `launch` is given it.

    Raises:
        UserError: not on Linux.
    """
    if not Path("/proc/self/cmdline").exists():
        raise UserError("the agent that is to die is found in /proc: this needs Linux")
    folder, over, lost = Path(os.path.abspath(ROOT / out)), threading.Event(), Lost()
    watch = threading.Thread(target=_watch, args=(folder, node, after_step, over, lost))
    watch.start()
    try:
        yield lost
    finally:
        over.set()
        watch.join()


def _watch(folder: Path, node: int, after_step: int, over: threading.Event, lost: Lost) -> None:
    metrics = folder / "metrics.jsonl"
    while not over.is_set():
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done >= after_step:
            for agent in _agents(folder / "logs" / f"node-{node}" / "failures.json"):
                os.kill(agent, signal.SIGKILL)
                lost.at_step = done
            return
        time.sleep(POLL_S)


def _agents(failures: Path) -> list[int]:
    """Process ids of the agents that are to write this file."""
    wanted = [b"-m", b"helpers.lab.launch.torchrun_agent", str(failures).encode()]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        if words[1:4] == wanted:  # its guard's command holds the same words further on
            found.append(int(path.parent.name))
    return found
