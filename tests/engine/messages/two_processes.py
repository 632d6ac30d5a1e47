"""Two ranks without torchrun, whose agent would end both when one of them goes away."""

import signal
import subprocess
import sys
from pathlib import Path

START = """
import os, sys, torch, torch.distributed as dist
from datetime import timedelta
rank, store, wait_s, end = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
dist.init_process_group(
    "gloo",
    init_method=f"file://{store}",
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=wait_s),
)
"""


def last_words(program: str, folder: Path, wait_s: float, end: signal.Signals) -> str:
    """What rank 0 says last of a program in which rank 1 sends itself the signal `end`."""
    command = [sys.executable, "-c", START + program]
    rest = [str(folder / "store"), str(wait_s), str(int(end))]
    first, second = (
        subprocess.Popen([*command, str(rank), *rest], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    )
    try:
        return first.communicate(timeout=60)[1].strip().splitlines()[-1]
    finally:
        second.kill()
        second.communicate()
