"""The processes of one run: started, waited for, and ended, however the run ends.

with Processes(command, environment, log, grace_s=3.0) as processes:
    while not processes.end_within(0.1):
        ...
processes.stopped

this process -- pipe --> guard (process_guard.py) --> command --> ranks --> their children
"""

import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.lab.launch import process_guard as guard
from helpers.lab.launch.output_reader import KEPT_LINES, Output
from helpers.lab.paths import ROOT


@dataclass(frozen=True)
class Stopped:
    """What ending the processes took.

    left: ids of those that could not be ended.
    last_lines: of the output before they were told to end; none where they had ended themselves.
    """

    seconds: float = 0.0
    left: frozenset[int] = frozenset()
    last_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.left:
            return f"processes {sorted(self.left)} could not be ended, not even by SIGKILL"
        return f"every process was ended in {self.seconds:.1f} s"


class Processes:
    """What a command starts, beneath a guard.

    Attributes:
        started_at: seconds since the epoch.
        output: all that the processes write, merged; None before they are started.
        stopped: after the `with` block.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, grace_s: float
    ) -> None:
        """`grace_s` lies between SIGTERM and SIGKILL; `log` gets all that the processes write."""
        self.stopped = Stopped()
        self.started_at = time.time()
        self._started_s = time.monotonic()
        self._command = command
        self._marker = uuid.uuid4().hex  # every process of the run carries it
        self._environment = {**environment, guard.MARKER: self._marker}
        self._log = log
        self._grace_s = grace_s
        self._guard: subprocess.Popen[bytes] | None = None
        self.output: Output | None = None

    def __enter__(self) -> "Processes":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stop()
        except KeyboardInterrupt:  # a second one, by whom the first did not end soon enough
            self._stop()
            raise

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def exit_code(self) -> int:
        """Once all have ended; above 128 for a signal."""
        code = self._guard.returncode
        return 128 - code if code < 0 else code

    def last_lines(self, count: int) -> list[str]:
        """The end of the output, without what came of being told to end."""
        if self.stopped.last_lines:
            return list(self.stopped.last_lines[-count:])
        return self.output.last(count) if self.output else []

    def end_within(self, seconds: float) -> bool:
        """Wait; whether all have ended by themselves."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start(self) -> None:
        python = [sys.executable, "-I", "-S"]  # the guard needs the standard library alone
        self._guard = subprocess.Popen(
            [*python, guard.__file__, str(self._grace_s), *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env=self._environment,
        )
        self.output = Output(self._guard.stdout, self._log)
        self.output.start()

    def _stop(self) -> None:
        """End them all; quick where all have ended by themselves."""
        if self._guard is None:
            return
        began_s = time.monotonic()
        running = self._guard.poll() is None
        lines = self.output.last(KEPT_LINES) if running and self.output else []
        self._guard.stdin.close()  # the guard takes this as: end them all
        try:
            self._guard.wait(self._grace_s + guard.WAIT_FOR_KILL_S + 1)
        except subprocess.TimeoutExpired:
            self._guard.kill()
        # the guard has done this already, unless it was itself killed
        left = guard.end_all(lambda: guard.family(self._marker), self._grace_s)
        self._guard.wait()
        if self.output and self.output.is_alive():
            self.output.join(timeout=1)
        self.stopped = Stopped(time.monotonic() - began_s, frozenset(left), tuple(lines))
