"""Was anything else running? The cores' time that others took while a peer took its steps.

Linux says how busy the cores were (/proc/stat, with what a hypervisor took away); the peer's own
processor time is known; the rest is other processes'. Elsewhere nothing is known and all counts.
"""

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
QUIET = 0.10  # of the cores; above this a measurement says more of the neighbours than of the peer


class Watch:
    """others = watch.stop(own_cpu_s): between start and stop, what others took of all cores."""

    def __init__(self) -> None:
        self.began, self.busy = time.monotonic(), _busy_s()

    def stop(self, own_cpu_s: float) -> float | None:
        """A fraction of all cores' time; None where the system does not say."""
        if self.busy is None:
            return None
        span = (time.monotonic() - self.began) * cores()
        return max(0.0, _busy_s() - self.busy - own_cpu_s) / span


def cores() -> int:
    return os.cpu_count() or 1


def wait_until_quiet(patience_s: float) -> None:
    """Return when the cores are free, or when the patience is at its end."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        watch = Watch()
        time.sleep(0.5)
        others = watch.stop(0.0)
        if others is None or others < QUIET:
            return


def _busy_s() -> float | None:
    """Seconds that all cores together were busy or taken away since the machine started."""
    if not STAT.exists():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(
        int, STAT.read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
