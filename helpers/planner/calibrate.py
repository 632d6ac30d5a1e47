"""Measure this machine for the planner: products, memory, small operations, and its links.

    cluster = calibrate("runs/this_machine.json", ranks=4)     # under a minute
    cluster = load_cluster("runs/this_machine.json")

Ranks are started with torchrun and measure all at once, as they would in training, and one alone:
where they share cores, that is how many can really compute together. Every number is a median.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from helpers.engine.collectives import gather_single
from helpers.engine.errors import UserError
from helpers.engine.plan import pick_device
from helpers.planner.cluster import Cluster, Link
from helpers.planner.traffic import Message, message_s

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 0.4  # for the repetitions of one measurement
SIZES = (2**10, 2**14, 2**18, 2**22, 2**24)  # bytes of a message
LIMIT_S = 300
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def calibrate(path: str | Path, ranks: int = 4, gpus: bool = True) -> Cluster:
    """Measure this machine with `ranks` processes, save what was found as JSON, and return it.

    On GPUs a rank has one each. Takes well under a minute.

    Args:
        gpus: measure these where there are any; else the CPU's cores.

    Raises:
        UserError: ranks that are no whole number of at least 2, more of them than GPUs, or a
            measurement that failed, with its last line.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 2:
        raise UserError(f"links need two ranks at least: ranks is a whole number, not {ranks!r}")
    found = torch.cuda.device_count() if gpus else 0
    if found and ranks > found:
        raise UserError(f"there are {found} GPUs, so at most {found} ranks, not {ranks}")
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "-m", "helpers.planner.calibrate", str(path)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    if not gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise UserError(f"measuring this machine failed: {last}")
    return load_cluster(path)


def load_cluster(path: str | Path) -> Cluster:
    """The cluster that `calibrate` saved.

    Raises:
        UserError: there is no such file, or it is none of `calibrate`'s.
    """
    try:
        fields = json.loads(Path(path).read_text("utf-8"))["cluster"]
        links = {kind: Link(**link) for kind, link in fields.pop("measured").items()}
        intra, inter = Link(**fields.pop("intra")), Link(**fields.pop("inter"))
        return Cluster(**fields, intra=intra, inter=inter, measured=links)
    except FileNotFoundError:
        raise UserError(f"no {path}: calibrate() writes it") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is not what calibrate() writes: run it again") from None


def measure() -> dict[str, Any]:
    """On every rank of a process group: the fields of a Cluster, the same on all of them."""
    device = pick_device()
    world = dist.get_world_size()
    rates = {name: _matmul_flops(device, dtype) for name, dtype in _dtypes(device).items()}
    alone = _alone(lambda: _matmul_flops(device, torch.float32))
    together = min(float(world), world * rates["fp32"] / alone)
    shared = device.type == "cpu" and together < 0.9 * world
    if shared:  # while one waits, another has its core: rates of a rank that has one
        rates = {name: rate * world / together for name, rate in rates.items()}
    memory = _memory_bytes_per_s(device) * (world / together if shared else 1)
    links = {kind: _link(kind, device) for kind in ("all_reduce", "all_gather", "send")}
    fields = {
        "name": torch.cuda.get_device_name() if device.type == "cuda" else _cpu_name(),
        "nodes": 1,
        "devices_per_node": world,
        "memory_bytes": _device_bytes(device, world),
        "matmul_flops": rates,
        "memory_bytes_per_s": memory,
        "intra": asdict(links["all_reduce"]),
        "inter": asdict(links["all_reduce"]),
        "measured": {kind: asdict(link) for kind, link in links.items()},
        "operation_s": _operation_s(device) * (together / world if shared else 1),
        "together": together if shared else None,
        "overlaps": device.type == "cuda",
    }
    return _agreed(fields)


def _matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product that is large for the device."""
    n = 8192 if device.type == "cuda" else 384
    a = torch.randn(n, n, device=device).to(dtype)
    b, out = a.clone(), a.clone()
    return 2 * n**3 / _median_s(lambda: torch.mm(a, b, out=out), device)


def _memory_bytes_per_s(device: torch.device) -> float:
    """Bytes/s of an addition that streams through memory, out of all caches."""
    elements = 2**28 if device.type == "cuda" else 2**23
    a = torch.ones(elements, device=device)
    out = torch.empty_like(a)
    return 2 * a.nbytes / _median_s(lambda: torch.add(a, 1.0, out=out), device)


def _operation_s(device: torch.device) -> float:
    """Seconds of an operation on next to nothing."""
    a = torch.ones(64, 64, device=device)

    def hundred() -> None:
        for _ in range(100):
            a.add_(1.0)

    return _median_s(hundred, device) / 100


def _link(kind: str, device: torch.device) -> Link:
    """Latency and bandwidth with which traffic.message_s fits the measured seconds best: bytes/s of
    the largest messages, and the latency of the smallest."""
    world = dist.get_world_size()
    seconds = {
        size: _median_s(_sender(kind, size, device), device, together=True) for size in SIZES
    }
    ranks = 2 if kind == "send" else world

    def model(size: int, link: Link) -> float:
        return message_s(Message("tp", kind, size, 1, ranks, "", ""), link)

    small, large = SIZES[0], SIZES[-1]
    starts = model(small, Link(math.inf, 1.0))
    sent = model(large, Link(1.0, 0.0)) - model(small, Link(1.0, 0.0))
    bytes_per_s = sent / max(1e-9, seconds[large] - seconds[small])
    left_s = seconds[small] - model(small, Link(bytes_per_s, 0.0))
    return Link(bytes_per_s=bytes_per_s, latency_s=max(1e-7, left_s / starts))


def _sender(kind: str, size: int, device: torch.device) -> Callable[[], None]:
    """One message of `size` bytes of payload; every second rank sends to its neighbour."""
    world, rank = dist.get_world_size(), dist.get_rank()
    elements = -(-size // 4 // world) * world
    whole = torch.ones(elements, device=device)
    part = whole[: elements // world].clone()
    peer = rank ^ 1

    def send() -> None:
        if peer >= world:
            return
        if rank % 2:
            dist.recv(whole, peer)
        else:
            dist.send(whole, peer)

    ways = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: gather_single(whole, part),
        "send": send,
    }
    return ways[kind]


def _median_s(run: Callable[[], Any], device: torch.device, together: bool = False) -> float:
    """Median seconds of `run`, after a warm-up.

    Args:
        together: every rank repeats it equally often, as collectives need.
    """

    def timed() -> float:
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    first = max(timed() for _ in range(3))
    count = int(min(200, max(5, BUDGET_S / first)))
    if together:
        fewest = torch.tensor(float(count), device=device)
        dist.all_reduce(fewest, dist.ReduceOp.MIN)
        count = int(fewest)
    return median(timed() for _ in range(count))


def _alone(measured: Callable[[], float]) -> float:
    """What rank 0 measures while the others wait."""
    found = [measured() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def _agreed(fields: dict[str, Any]) -> dict[str, Any]:
    """The ranks' fields as one: the median of each number."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, fields)

    def merge(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: merge([value[key] for value in values]) for key in values[0]}
        if isinstance(values[0], float):
            return median(values)
        return values[0]

    return merge(every)


def _dtypes(device: torch.device) -> dict[str, torch.dtype]:
    """Precisions to measure; on a CPU fp16 has no fast product."""
    names = DTYPES if device.type == "cuda" else ("fp32", "bf16")
    return {name: DTYPES[name] for name in names}


def _device_bytes(device: torch.device, world: int) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // world


def _cpu_name() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}"


def main() -> None:
    """What torchrun starts on every rank."""
    parser = argparse.ArgumentParser(description="Measure this machine for the planner.")
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    device = pick_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    cluster = measure()
    if dist.get_rank() == 0:
        about = {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "cluster": cluster}
        path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
