"""`torchrun -m helpers.train`, and `python -m helpers.train` for one process."""

import time

STARTED = time.perf_counter()  # before the imports: they are a part of the bill

from functools import partial

from helpers.engine.ranks import run_and_leave
from helpers.train.run import main

if __name__ == "__main__":
    run_and_leave(partial(main, STARTED))
