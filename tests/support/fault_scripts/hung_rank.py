"""scripts/train.py, whose last rank sleeps over its data before its third step."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial

from helpers.engine.ranks import run_and_leave
from helpers.train import run

HANGS = "sleep" if "--stopped" not in sys.argv else "stop"
LAST = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
read = run.traced_batches


def slow_reader(*given: object) -> Iterator[object]:
    for step, batch in enumerate(read(*given), start=1):
        if LAST and step == 3:
            hang()
        yield batch


def hang() -> None:
    if HANGS == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)


if __name__ == "__main__":
    sys.argv = [word for word in sys.argv if word != "--stopped"]
    run.traced_batches = slow_reader
    run_and_leave(partial(run.main, time.perf_counter()))
