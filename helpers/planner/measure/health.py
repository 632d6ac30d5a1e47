"""What each rank can do before it is given work: products, memory, disk, and the link of each pair.

    torchrun --nproc-per-node 4 -m helpers.planner.measure.health --out runs/health

    found = examine(folder)          every rank calls it; all get what all ranks found
    judge(found)                     in health_verdict.py: who is slow

All ranks measure at once, as they will train, and the best of several short spans counts: what else
a machine does now and then slows one span, a broken fan or a busy neighbour slows all of them. For
the same reason all is measured again before a rank is called slow. The
pairs meet in the rounds of a tournament, which are the same on every rank: with NCCL a pair's first
message blocks both until its connection is made, so pairs in another order could wait for ever.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from helpers.engine.plan import ParallelPlan
from helpers.engine.ranks import (
    distributed,
    on_all_ranks,
    over_ranks,
    pick_device,
    run_and_leave,
    world_size,
)
from helpers.planner.measure.gpu_state import gpu_state
from helpers.planner.measure.health_verdict import judge
from helpers.planner.measure.rank_measurements import matmul_flops, memory_bytes_per_s, pace_s

SHORT, LONG = 2**10, {"cpu": 2**22, "cuda": 2**26}  # bytes of a message, for latency and for rate
BEST = {"pick": min, "spans": (6, 0.1)}
BEST_OF_LINK = {"pick": min, "spans": (4, 0.03)}
DISK_BYTES, DISK_TRIES = 2**24, 3
TRIES = 4  # a rank is slow if it is so in all of them
MOST_ROUNDS = 63  # of pairs; a larger world sees so many of its rounds, not all pairs


@dataclass(frozen=True)
class RankHealth:
    """What one rank measured.

    node: the host's name, with the number of torchrun's node where there are several.
    device: what torch calls the GPU, or cpu.
    rates: by kind: product in FLOP/s (float32), all others in bytes/s.
    links: of its pairs with later ranks, by that rank: seconds of a message of 1 KiB one way, and
        bytes/s of a long one.
    gpu: what nvidia-smi says, by its own names; empty on a CPU.
    """

    node: str
    device: str
    rates: dict[str, float]
    links: dict[int, tuple[float, float]] = field(default_factory=dict)
    gpu: dict[str, Any] = field(default_factory=dict)


def examine(folder: Path, device: torch.device | None = None) -> list[RankHealth]:
    """`measure`, and again while some rank is slow: what is best of all tries, by rank.

    Raises:
        OSError: as `measure`.
    """
    found = measure(folder, device)
    for _ in range(TRIES - 1):
        if not any(finding.slower for finding in judge(found)):
            break
        found = [_better(*two) for two in zip(found, measure(folder, device))]
    # the run that follows has the memory, and its own peak
    if (device or pick_device()).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def measure(folder: Path, device: torch.device | None = None) -> list[RankHealth]:
    """On every rank of a process group: what each of them found, by rank. Takes some seconds.

    Args:
        folder: of the disk to measure, or a path in it that is not there yet. Nothing stays there.

    Raises:
        OSError: on every rank, where one cannot write there.
    """
    device = device or pick_device()
    gpu = gpu_state(device) if device.type == "cuda" else {}
    rates = {
        "product": matmul_flops(device, torch.float32, **BEST),
        "memory": memory_bytes_per_s(device, **BEST),
    }
    dist.barrier()
    [*disks] = on_all_ranks(partial(_disk_bytes_per_s, folder))
    rates |= disks[dist.get_rank()]
    if dist.get_world_size() > 1:
        rates["all-reduce"] = _all_reduce_bytes_per_s(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return over_ranks(RankHealth(_node(), name, rates, _links(device), gpu))


def rounds(world: int) -> Iterator[dict[int, int]]:
    """A tournament: in each round every rank's opponent, until all have met; with an odd number
    one of them rests. At most MOST_ROUNDS.

    Source: the circle method (Kirkman 1847): one stays, the others turn about it.
    """
    seats = [*range(world), *([None] if world % 2 else [])]
    for _ in range(min(len(seats) - 1, MOST_ROUNDS)):
        half = len(seats) // 2
        met = [pair for pair in zip(seats[:half], reversed(seats[half:])) if None not in pair]
        yield {a: b for pair in met for a, b in (pair, pair[::-1])}
        seats = [seats[0], seats[-1], *seats[1:-1]]


def read_health(path: Path) -> list[RankHealth]:
    """What the ranks of this module's command line left in health.json."""
    ranks = [RankHealth(**fields) for fields in json.loads(path.read_text("utf-8"))]
    by_peer = [{int(peer): tuple(link) for peer, link in rank.links.items()} for rank in ranks]
    return [replace(rank, links=links) for rank, links in zip(ranks, by_peer)]


def _better(one: RankHealth, other: RankHealth) -> RankHealth:
    """The best of two measurements of a rank."""
    rates = {kind: max(rate, other.rates[kind]) for kind, rate in one.rates.items()}
    links = {
        peer: (min(link[0], other.links[peer][0]), max(link[1], other.links[peer][1]))
        for peer, link in one.links.items()
    }
    return replace(other, rates=rates, links=links)


def _links(device: torch.device) -> dict[int, tuple[float, float]]:
    """In a group of its own: NCCL's connections of the pairs go with it, and their memory too."""
    if dist.get_world_size() == 1:
        return {}
    group, rank, found = dist.new_group(), dist.get_rank(), {}
    long = LONG[device.type]
    for peers in rounds(dist.get_world_size()):
        peer = peers.get(rank)
        short_s, long_s = (_one_way_s(peer, size, device, group) for size in (SHORT, long))
        if peer is not None and peer > rank:
            found[peer] = (short_s, long / long_s)
    dist.destroy_process_group(group)
    return found


def _one_way_s(peer: int | None, size: int, device: torch.device, group: Any) -> float:
    """Half of a message's way to the peer and back. All ranks call it, one that rests as well."""
    message = torch.ones(size // 4, device=device)
    ways = [dist.send, dist.recv] if dist.get_rank() < (peer or 0) else [dist.recv, dist.send]

    def there_and_back() -> None:
        for way in ways if peer is not None else ():
            way(message, peer, group=group)

    return pace_s(there_and_back, device, **BEST_OF_LINK) / 2


def _all_reduce_bytes_per_s(device: torch.device) -> float:
    """Bytes of payload over the seconds of its sum over all ranks."""
    payload = torch.zeros(LONG[device.type] // 4, device=device)
    pace = pace_s(lambda: dist.all_reduce(payload), device, **BEST_OF_LINK)
    return payload.nbytes / pace


def _disk_bytes_per_s(folder: Path) -> dict[str, float]:
    """Of a file without a name, which is gone with its process; written to the disk itself, and
    read from it where the system can be told to forget its copy (Linux)."""
    folder = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    tries = [_write_and_read_s(folder) for _ in range(DISK_TRIES)]
    write_s, read_s = map(min, zip(*tries))
    return {"disk write": DISK_BYTES / write_s, "disk read": DISK_BYTES / read_s}


def _write_and_read_s(folder: Path) -> tuple[float, float]:
    content = os.urandom(DISK_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.perf_counter()
        file.write(content)
        os.fsync(file.fileno())
        written = time.perf_counter()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        reading = time.perf_counter()
        file.read()
        return written - began, time.perf_counter() - reading


def _node() -> str:
    several = os.environ.get("GROUP_WORLD_SIZE", "1") != "1"
    return platform.node() + (f", node {os.environ['GROUP_RANK']}" if several else "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="helpers.planner.measure.health")
    parser.add_argument("--out", required=True, type=Path, help="for health.json")
    out = parser.parse_args().out
    with distributed(ParallelPlan(dp_replicate=world_size())):
        found = examine(out)
        if dist.get_rank() == 0:
            out.mkdir(parents=True, exist_ok=True)
            record = [asdict(health) for health in found]
            (out / "health.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    run_and_leave(main)
