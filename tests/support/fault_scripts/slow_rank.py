"""scripts/train.py, whose last rank shares its core with something that goes first (Linux)."""

import os
import subprocess
import sys
import time
from functools import partial

from helpers.engine.ranks import run_and_leave
from helpers.planner.measure import health
from helpers.train.run import main

if __name__ == "__main__":
    health.TRIES = 1  # a rank that hardly ever runs takes its time to say so
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        subprocess.Popen([sys.executable, "-c", "while True: pass"])  # ended with the launch
        os.nice(6)
    run_and_leave(partial(main, time.perf_counter()))
