"""What runs in a rank: read the call, join the others, call, and leave the result.

    torchrun -m helpers.lab.calls.program --limit SECONDS --out FOLDER

FOLDER holds the call; each rank leaves its result there, or what it raised, or, when the time is
over, the line of the call in which it waits.
"""

import argparse
import json
import os
import pickle
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from helpers.engine.errors import whole_reason
from helpers.engine.files.whole import replace_text
from helpers.lab.calls.by_value import by_value

CALL, RESULT, ERROR, WAITS = "call.pkl", "result-{}.pkl", "error-{}.json", "waits-{}.json"
TOGETHER_S = 3600
OURS = (str(Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix, "<frozen")


def main() -> None:
    import torch.distributed as dist

    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rank, folder = int(os.environ["RANK"]), arguments.out
    dist.init_process_group("gloo", timeout=timedelta(seconds=TOGETHER_S))
    watch = threading.Timer(arguments.limit, _leave, [rank, folder, threading.get_ident()])
    watch.daemon = True
    watch.start()
    try:
        function, given = pickle.loads((folder / CALL).read_bytes())
        returned = by_value(function(*given))
    except (Exception, SystemExit) as error:  # one that left at its will would leave no result
        _write(folder / ERROR.format(rank), _raised(error))
        sys.stdout.flush()
        os._exit(1)
    (folder / RESULT.format(rank)).write_bytes(returned)
    _wait_for_all(rank, dist.get_world_size())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # groups that a peer has left would be waited for


def _wait_for_all(rank: int, ranks: int) -> None:
    """A rank that left would break its peers' messages, and hide that they wait for one."""
    from torch.distributed.distributed_c10d import _get_default_store

    store, together = _get_default_store(), timedelta(seconds=TOGETHER_S)
    store.set(f"returned-{rank}", b"")
    store.wait([f"returned-{other}" for other in range(ranks)], together)
    store.set(f"leaving-{rank}", b"")
    if rank == 0:  # the store is its own: it leaves last
        store.wait([f"leaving-{other}" for other in range(ranks)], together)


def _leave(rank: int, folder: Path, thread: int) -> None:
    """The time is over: say in which line the call waits, and end."""
    frame = sys._current_frames().get(thread)
    found = {"at_ns": time.monotonic_ns(), "returned": (folder / RESULT.format(rank)).exists()}
    _write(folder / WAITS.format(rank), found | _line_of_the_call(frame))
    threading.Event().wait(0.5)  # the others write theirs before the first one's end ends them
    os._exit(1)


def _line_of_the_call(frame: FrameType | None) -> dict[str, Any]:
    """The innermost line that is neither a library's nor ours."""
    while frame and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    if frame is None:
        return {"line": 0}
    return {"file": frame.f_code.co_filename, "line": frame.f_lineno}


def _raised(error: BaseException) -> dict[str, Any]:
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if not line.filename.startswith(OURS)]
    words = whole_reason(error, 300)
    found = {"type": type(error).__name__, "words": words, "at_ns": time.monotonic_ns()}
    return found | ({"file": own[-1].filename, "line": own[-1].lineno} if own else {})


def _write(path: Path, found: dict[str, Any]) -> None:
    replace_text(path, json.dumps(found))


if __name__ == "__main__":
    main()
