"""How a rank's process ends."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def run_and_leave(main: Callable[[], None]) -> NoReturn:
    """Run a script's `main`, then end the process without Python's shutdown.

    Gloo's threads outlive their groups, and one of them that wants Python while it shuts down
    aborts the process: a run that is done, or refused, would count as crashed. A failure keeps its
    traceback: what `main` raises goes on as it is, save SystemExit with a number.
    """
    code = 0
    try:
        main()
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            raise
        code = leaving.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
