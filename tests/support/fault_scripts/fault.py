"""One rank that goes wrong, and its peers: fault.py --fault NAME. Each function is one way.

The faults that need no process group do not import torch, so that their tests are quick.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))


def fine(out: Path) -> None:
    with open(out / "metrics.jsonl", "w") as file:
        for step in range(20):
            row = {"step": step, "loss": 3 - step / 20, "tokens": 512, "tokens_per_s": 1000 + step}
            file.write(json.dumps(row) + "\n")
            file.flush()
            time.sleep(0.02)
    print(f"rank {RANK} is done", os.environ["OMP_NUM_THREADS"])


def raises(out: Path) -> None:
    if RANK == 1:
        raise ValueError("boom of rank 1")
    time.sleep(60)


def refuses(out: Path) -> None:
    print("a warning that comes before", file=sys.stderr)
    print("tp is 3, but the model has 4 heads: choose 1, 2 or 4", file=sys.stderr)
    sys.exit(2)


def floods(out: Path) -> None:
    for number in range(100_000):
        print(f"line {number} of a rank that says too much")


def deaf(out: Path) -> None:
    """Every rank hangs and ignores SIGTERM, and has a child in a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("entering the collective", flush=True)
    time.sleep(600)


def leaves_a_child(out: Path) -> None:
    """Every rank ends well, and a child with its streams goes on."""
    subprocess.Popen(["sleep", "600"])
    print(f"the last words of rank {RANK}")


def leaves_a_child_that_writes(out: Path) -> None:
    subprocess.Popen(["sh", "-c", "while :; do echo still here; sleep 0.01; done"])
    print(f"the last words of rank {RANK}")


def deaf_peer(out: Path) -> None:
    """Rank 1 fails while rank 0 ignores torchrun's SIGTERM."""
    if RANK == 0:
        deaf(out)
    while not list(out.glob("logs/*/*/0/stdout.log")) or "entering" not in _said_by_rank_0(out):
        time.sleep(0.05)
    raise ValueError("boom of rank 1")


def _said_by_rank_0(out: Path) -> str:
    return next(out.glob("logs/*/*/0/stdout.log")).read_text()


def collective(out: Path) -> None:
    """Rank 1 raises; rank 0, in an all-reduce with it, then fails too, because of it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if RANK == 1:
        raise ValueError("boom of rank 1")
    dist.all_reduce(torch.ones(1))


def collective_of_all(out: Path) -> None:
    """Nobody fails."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(RANK + 1)
    dist.all_reduce(total)
    devices = Path("/proc/self/net/dev")  # of Linux
    wire = devices.exists() and "wire:" in devices.read_text()
    place = f"rank {RANK} of {dist.get_world_size()}, local rank {os.environ['LOCAL_RANK']}"
    print(f"{place}, sum {total.item()}, wire {wire}")
    dist.destroy_process_group()
    for name, value in zip(sys.argv, sys.argv[1:]):
        if name == "--more":
            print(f"more: {value}")


def meets(out: Path) -> None:
    """Nobody fails; the ranks stay together until the test has looked at them."""
    import torch
    import torch.distributed as dist

    from helpers.engine.ranks import join

    join("gloo")
    dist.all_reduce(torch.ones(1))
    print("together", flush=True)
    for _ in range(600):
        if (out / "seen").exists():
            break
        time.sleep(0.1)
    dist.destroy_process_group()


def recorded(out: Path) -> None:
    """The same in a script that keeps its errors as torch's manual says."""
    from torch.distributed.elastic.multiprocessing.errors import record

    record(collective)(out)


def killed(out: Path) -> None:
    """Rank 1 is killed; rank 0 raises, and records, that it has lost its peer."""
    import torch
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main() -> None:
        dist.init_process_group("gloo")
        if RANK == 1:
            print("allocating", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    main()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="fine")
    parser.add_argument("--out", type=Path, required=True)
    arguments, _ = parser.parse_known_args()
    globals()[arguments.fault](arguments.out)
