"""How the processes of a run end: with their parent, and without Python's shutdown."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun's agent tells its ranks


def die_with_parent() -> None:
    """This process is killed when its parent ends, however that ends (Linux; prctl(2),
    PR_SET_PDEATHSIG). A rank so outlives no agent that was killed by SIGKILL, which ends nobody."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # a kernel or a library without it
            ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0)


def run_and_leave(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main`, then end the process without Python's shutdown.

    Gloo's threads outlive their groups, and one of them that wants Python while it shuts down
    aborts the process: a run that is done, or refused, would count as crashed. A failure keeps its
    traceback: what `main` raises goes on as it is, save SystemExit with a number.
    """
    code = 0
    if UNDER_TORCHRUN in os.environ:
        die_with_parent()  # here too, for imports and reading take a while
    try:
        main()
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            raise
        code = leaving.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
