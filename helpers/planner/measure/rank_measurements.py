"""What each rank of `calibrate` measures; torchrun starts this module.

All ranks measure at once, as they would in training, and one alone: where they share cores, that is
how many can really compute together. A number is the pace over some tenths of a second, all waits
for a core among it, and the median of three such spans.
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from helpers.engine.messages.carriers import (
    all_reduce,
    gather_single,
    receive,
    scatter_single,
    send,
)
from helpers.engine.messages.mailboxes import open_mailboxes
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.bf16_products import products
from helpers.engine.ranks import join, over_ranks, pick_device, run_and_leave
from helpers.planner.hardware.devices import OPERATION_S
from helpers.planner.hardware.links import Link
from helpers.planner.hardware.lookup import gpu_of
from helpers.planner.measure.calibrate import cluster_of
from helpers.planner.measure.small_steps import with_small_steps
from helpers.planner.time.messages import Message, message_s

SPAN_S, SPANS = 0.25, 3  # a measurement repeats for so long, so many times
SIZES = (2**10, 2**14, 2**18, 2**22, 2**24)  # bytes of a message
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "send")
OF_CPU = {"device": "cpu", "host_operation_s": 0.0, "context_bytes": 0.0}  # it is its own host
Pick = Callable[[list[float]], float]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure() -> dict[str, Any]:
    """On every rank of a process group: the fields of a Cluster, the same on all of them."""
    device = pick_device()
    world = dist.get_world_size()
    dtypes = _dtypes(device)
    with products(ParallelPlan(precision="bf16"), device):  # as the engine multiplies
        rates = {name: matmul_flops(device, dtype) for name, dtype in dtypes.items()}
        attention = {name: attention_flops(device, dtype) for name, dtype in dtypes.items()}
    alone = _alone(lambda: matmul_flops(device, torch.float32, together=False))
    paces = over_ranks(rates["fp32"])  # so that all come to the same conclusion
    most = world if device.type == "cuda" else min(world, os.cpu_count() or world)
    together = min(float(most), sum(paces) / alone)
    shared = device.type == "cpu" and together < 0.9 * world
    if shared:  # while one waits, another has its core: rates of a rank that has one
        rates = {name: rate * world / together for name, rate in rates.items()}
        attention = {name: rate * world / together for name, rate in attention.items()}
    memory, others = (
        pace(device) * (world / together if shared else 1)
        for pace in (memory_bytes_per_s, others_bytes_per_s)
    )
    links = {kind: _link(kind, device) for kind in KINDS} if world > 1 else {}
    link = links.get("all_reduce") or Link(memory, OPERATION_S)  # one rank's is to itself: a copy
    fields = {
        "name": _gpu_name() if device.type == "cuda" else _cpu_name(),
        "nodes": 1,
        "devices_per_node": world,
        "memory_bytes": _device_bytes(device, world),
        "matmul_flops": rates,
        "attention_flops": attention,
        "memory_bytes_per_s": memory,
        "others_bytes_per_s": others if device.type == "cpu" else None,
        "intra": asdict(link),
        "inter": asdict(link),
        "measured": {kind: asdict(link) for kind, link in links.items()},
        "operation_s": OPERATION_S,
        "together": together if shared else None,
        "overlaps": device.type == "cuda",
        **(_of_gpu() if device.type == "cuda" else OF_CPU),
    }
    return asdict(with_small_steps(cluster_of(_agreed(fields)), device))


def _of_gpu() -> dict[str, Any]:
    """What a GPU has beside a processor: a name, by which its peak is known."""
    known = gpu_of(_gpu_name())
    return {"gpu": known.name, "generation": known.generation} if known else {}


def _gpu_name() -> str:
    return torch.cuda.get_device_name()


def matmul_flops(
    device: torch.device, dtype: torch.dtype, together: bool = True, **how: Any
) -> float:
    """FLOP/s of a square matrix product that is large for the device; `how`: as for pace_s."""
    n = 8192 if device.type == "cuda" else 384
    a = torch.randn(n, n, device=device).to(dtype)
    b = a.clone()
    return 2 * n**3 / pace_s(lambda: torch.mm(a, b), device, together, **how)


def attention_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of causal attention forward and backward, over the half that the mask leaves."""
    rows, heads, seq_len, width = (4, 16, 2048, 128) if device.type == "cuda" else (1, 4, 256, 64)
    shape = (rows, heads, seq_len, width)
    query, key, value = (
        torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)
    )

    def both() -> None:
        out = scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(out, (query, key, value), out)

    # as in roofline.attention_s: twice the triangle's products forward, and 2.5 times that backward
    return 3.5 * 2 * rows * heads * seq_len**2 * width / pace_s(both, device)


def memory_bytes_per_s(device: torch.device, **how: Any) -> float:
    """Bytes/s of an addition that streams through memory, out of all caches;
    `how`: as for pace_s."""
    elements = 2**28 if device.type == "cuda" else 2**23
    a = torch.ones(elements, device=device)
    out = torch.empty_like(a)
    return 2 * a.nbytes / pace_s(lambda: torch.add(a, 1.0, out=out), device, **how)


def others_bytes_per_s(device: torch.device) -> float:
    """Bytes/s of a block's operations between products: a norm, a sum, and the activation of four
    times the width, which a processor computes slower than it moves its bytes."""
    x, wide = torch.randn(256, 256, device=device), torch.randn(256, 1024, device=device)

    def run() -> None:
        layer_norm(x, x.shape[1:])
        torch.add(x, x)
        gelu(wide, approximate="tanh")

    return (2 * x.nbytes + 3 * x.nbytes + 2 * wide.nbytes) / pace_s(run, device)


def _link(kind: str, device: torch.device) -> Link:
    """Latency and bandwidth with which messages.message_s fits the measured seconds best: the least
    sum of squared relative errors over all sizes."""
    if kind == "send":
        ranks, measured = 2, _sending_s(device)
    else:
        ranks = dist.get_world_size()
        measured = [pace_s(_sender(kind, size, device), device) for size in SIZES]
    messages = [Message("tp", kind, size, 1, ranks, "", "") for size in SIZES]
    # seconds / measured = latency * starts + sent / bytes_per_s should all be 1
    starts = [message_s(sent, Link(math.inf, 1.0)) / s for sent, s in zip(messages, measured)]
    sizes = [message_s(sent, Link(1.0, 0.0)) / s for sent, s in zip(messages, measured)]
    fit = torch.linalg.lstsq(
        torch.tensor([starts, sizes], dtype=torch.float64).T,
        torch.ones(len(SIZES), 1, dtype=torch.float64),
    )
    latency_s, byte_s = fit.solution.flatten().tolist()
    return Link(bytes_per_s=1 / max(1e-14, byte_s), latency_s=max(1e-7, latency_s))


def _sender(kind: str, size: int, device: torch.device) -> Callable[[], None]:
    """One message of `size` bytes of payload, carried as the engine's are."""
    world = dist.get_world_size()
    elements = -(-size // 4 // world) * world
    whole = torch.ones(elements, device=device)
    part = whole[: elements // world].clone()
    ways = {
        "all_reduce": lambda: all_reduce(whole),
        "all_gather": lambda: gather_single(whole, part),
        "reduce_scatter": lambda: scatter_single(part, whole),
    }
    return ways[kind]


def _sending_s(device: torch.device) -> list[float]:
    """Seconds of a message to a neighbour, by size: half of what there and back takes."""
    ways = [dist.new_group(), dist.new_group()]
    for group in ways:
        open_mailboxes(group)
    tensors = [torch.ones(size // 4, device=device) for size in SIZES]
    return [pace_s(lambda x=x: there_and_back(x, ways), device) / 2 for x in tensors]


def there_and_back(x: torch.Tensor, ways: Sequence[dist.ProcessGroup]) -> None:
    """Send `x` to the neighbour and get it back: ranks 0 and 1, 2 and 3 and so on, over a group of
    all ranks for each way. A last rank without a neighbour does nothing."""
    peer, (there, back) = dist.get_rank() ^ 1, ways
    calls = [(send, there), (receive, back)]
    if dist.get_rank() > peer:
        calls = [(receive, there), (send, back)]
    for call, group in calls if peer < dist.get_world_size() else ():
        call(x, group, peer).wait()


def pace_s(
    run: Callable[[], Any],
    device: torch.device,
    together: bool = True,
    pick: Pick = median,
    spans: tuple[int, float] = (SPANS, SPAN_S),
) -> float:
    """Seconds of `run` after a warm-up: a span's length over the repetitions in it, the median of
    several, or which one is picked. Ranks that share a core take turns within a span, so none of
    its time is left out.

    Args:
        together: all ranks begin at once, and repeat it equally often, as collectives need.
        pick: of the spans' paces; `min` is the pace that the device reaches.
        spans: their number, and the seconds of each.
    """

    def span_s(count: int) -> float:
        if together:
            dist.barrier()
        started = time.perf_counter()
        for _ in range(count):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / count

    span_s(2)
    count = torch.tensor(max(3.0, spans[1] / span_s(3)), device=device)
    if together:
        dist.all_reduce(count, dist.ReduceOp.MIN)
    return pick([span_s(int(count)) for _ in range(spans[0])])


def _alone(measured: Callable[[], float]) -> float:
    """What rank 0 measures while the others wait."""
    result = [measured() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(result)
    return result[0]


def _agreed(fields: dict[str, Any]) -> dict[str, Any]:
    """The ranks' fields as one: the median of each number."""

    def merge(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: merge([value[key] for value in values]) for key in values[0]}
        if isinstance(values[0], float):
            return median(values)
        return values[0]

    return merge(over_ranks(fields))


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
    join("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    cluster = measure()
    if dist.get_rank() == 0:
        about = {"date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "cluster": cluster}
        path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_leave(main)
