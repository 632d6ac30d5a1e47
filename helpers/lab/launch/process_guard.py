"""The guard: the kernel's only child, and the keeper of everything that a run starts.

torchrun puts each rank into a session of its own, so neither a signal to torchrun's group nor a
parent-death signal on torchrun reaches a rank. The guard stands between kernel and torchrun:

    kernel -- pipe --> guard --> torchrun --> ranks --> their children

It ends the whole family, TERM first and KILL after a grace, when the pipe from the kernel closes
(a kernel killed with -9 closes it too), when it is told to end, and when torchrun has ended but
left something behind. A process belongs to the family when it descends from the guard or carries
the run's marker in its environment: the second also finds what a dead parent has orphaned.
(A node can have a guard of its own, whose marker begins with the run's: see nodes/local_nodes.py.)

Run as a script, with the standard library alone so that it starts in 20 ms:
    python -I -S process_guard.py GRACE_S COMMAND...    (the marker is in the environment)
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

MARKER = "HELPERS_RUN_MARKER"  # the environment variable that every process of a run inherits
WAIT_FOR_KILL_S = 5.0  # a process that outlives SIGKILL for so long is stuck in the kernel
_LINUX = sys.platform.startswith("linux")


def family(marker: str, root: int | None = None) -> set[int]:
    """Process ids of all that carry `marker` or one that begins with it, or descend from them or
    from `root`, but ourselves."""
    children: dict[int, list[int]] = {}
    members = {root} if root else set()
    for pid, parent, marked in _linux_processes(marker) if _LINUX else _ps_processes(marker):
        children.setdefault(parent, []).append(pid)
        if marked:
            members.add(pid)
    queue = list(members)
    while queue:
        new = set(children.get(queue.pop(), ())) - members
        members |= new
        queue.extend(new)
    return members - {os.getpid(), root}


def _linux_processes(marker: str) -> Iterator[tuple[int, int, bool]]:
    """(process id, parent's id, carries the marker) of every live process, from /proc."""
    needle = f"{MARKER}={marker}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                # the name, in brackets, may itself hold spaces and brackets
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it ended while we looked
        if state in "ZX":
            continue
        marked = False
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
            marked = b"\0" + needle in b"\0" + file.read()
        yield int(entry), int(parent), marked


def _ps_processes(marker: str) -> Iterator[tuple[int, int, bool]]:
    """The same by `ps`, for macOS, where -E shows the environment of one's own processes."""
    show_environment = "-axEww" if sys.platform == "darwin" else "axeww"
    ps = subprocess.Popen(
        ["ps", show_environment, "-o", "pid=,ppid=,stat=,command="],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    for line in ps.communicate()[0].splitlines():
        pid, parent, state, *command = line.split(None, 3)
        if int(pid) != ps.pid and not state.startswith("Z"):
            yield int(pid), int(parent), f"{MARKER}={marker}" in "".join(command)


def end_all(find: Callable[[], set[int]], grace_s: float) -> set[int]:
    """TERM to all that `find` returns, KILL to what is left after `grace_s`; who is still there.

    `find` is called again and again, since a process may start another while it is being ended.
    """
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, WAIT_FOR_KILL_S)):
        deadline = time.monotonic() + wait_s
        told: set[int] = set()
        while alive := find():
            for pid in alive - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            told |= alive
            if time.monotonic() > deadline:
                break
            time.sleep(0.03)
        else:
            return set()
    return find()


def _prctl(option: int, value: int) -> None:
    """Best effort: what it brings is a second line of defence."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _adopt_orphans() -> None:
    """PR_SET_CHILD_SUBREAPER: a rank whose torchrun is killed becomes our child, not init's."""
    if _LINUX:
        _prctl(36, 1)


def die_with_parent(number: int) -> None:
    """PR_SET_PDEATHSIG: this process gets signal `number` when its parent ends, however it does."""
    if _LINUX:
        _prctl(1, number)


def main() -> int:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    marker, kernel = os.environ[MARKER], os.getppid()
    told_to_end = False

    def end(*_: object) -> None:
        nonlocal told_to_end
        told_to_end = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    _adopt_orphans()
    torchrun = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # it then ends its ranks
    )
    while torchrun.poll() is None and not told_to_end and os.getppid() == kernel:
        # nothing is ever written to the pipe: readable means that the kernel's end is closed
        if select.select([sys.stdin], [], [], 0.1)[0]:
            break
    left = end_all(lambda: family(marker, os.getpid()), grace_s)
    code = torchrun.poll()
    if code is None or left:
        return 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
