"""Waiting for what another process does."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float, every_s: float = 0.05) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
