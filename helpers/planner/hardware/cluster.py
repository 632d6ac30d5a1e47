"""Machines as the planner's formulas see them: how fast real work goes, not what a sheet promises.

cluster = make_cluster("p4d.24xlarge", nodes=4)
cluster = make_cluster("dgx-a100", gpus=4)           # a part of one machine
cluster = make_cluster(gpu="H100-80", gpus=8, nodes=4, intra_gb_s=450, inter_gb_s=400)
cluster.devices, cluster.memory_bytes, cluster.usd_per_hour
"""

import math
from dataclasses import replace
from typing import Any

from helpers.engine.errors import UserError, check_count
from helpers.planner.hardware.catalog import (
    GIB,
    GIGA,
    GPU,
    MICRO,
    TERA,
    Instance,
    generation,
    meshes,
    network,
)
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link
from helpers.planner.hardware.lookup import (
    find_gpu,
    find_instance,
    is_amount,
    price,
    recorded_prices,
)

# Shares of a nominal rate that real work reaches; of products and attention see generations.csv,
# of networks networks.csv.
REACHED = {
    # github.com/calculon-ai/calculon systems/a100_80g.json, for tensors of 10 MB and more
    "memory": 0.90,
    # 235 of 300 GB/s: github.com/stas00/ml-engineering network/README.md, all-reduce in a node
    "intra": 0.78,
}
LEAST_INNER = 1024  # of a part of a product's inner dimension, below which adding up costs more
NVLINK_GB_S = 100  # PCIe has less between two GPUs, NVLink more


def make_cluster(
    instance: str | None = None,
    nodes: int = 1,
    service: str | None = None,
    usd_per_hour: float | None = None,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    intra_gb_s: float | None = None,
    inter_gb_s: float | None = None,
    rails: int | None = None,
    oversubscription: float = 1.0,
    host_gib: float | None = None,
    kw: float | None = None,
) -> Cluster:
    """The cluster of `nodes` machines of instances.csv, or of your own.

    Args:
        instance: of instances.csv; else give `gpu`, of gpus.csv, and `gpus`.
        service: whose price is taken, as in lookup.price.
        usd_per_hour: your own price of one machine.
        gpus: of a machine; of an instance, how many of its GPUs are used.
        intra_gb_s: GB/s of a GPU to the others of its machine, one way.
        inter_gb_s: GB/s of a whole machine to others, one way.
        rails, oversubscription, kw: as Cluster has them. host_gib: a machine's own memory.

    Raises:
        UserError: an unknown name, a number that makes no sense, or one that is missing.
    """
    given = {"intra_gb_s": intra_gb_s, "inter_gb_s": inter_gb_s, "host_gib": host_gib, "kw": kw}
    for name, number in given.items():
        if number is not None and not is_amount(number):
            raise UserError(f"{name} must be a number above 0, not {number!r:.40}")
    for name, number in (("gpus", gpus), ("rails", rails)):
        if number is not None:
            check_count(name, number)
    if (instance is None) == (gpu is None):
        raise UserError("give an instance, as make_cluster('p4d.24xlarge'), or a gpu and gpus")
    if gpu is not None and service is not None:
        raise UserError("a service prices its own machines: give usd_per_hour with a gpu")
    machine = find_instance(instance) if gpu is None else _own(gpu, gpus, nodes, **given)
    used = machine.gpus if gpus is None else gpus
    if used > machine.gpus:
        raise UserError(f"{machine.name} has {machine.gpus} GPUs, not {gpus}")
    return _cluster(
        replace(machine, **_changed(given, rails)),
        nodes,
        used,
        oversubscription,
        service,
        usd_per_hour,
    )


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """The same machines, another number of them.

    Raises:
        UserError: it is no cluster, or no number of nodes.
    """
    check_cluster(cluster)
    return replace(cluster, nodes=nodes)


def check_cluster(cluster: Any) -> None:
    """Raise a UserError if it is none."""
    if not isinstance(cluster, Cluster):
        raise UserError(
            f"give a cluster, as make_cluster('p4d.24xlarge', nodes=4), not {cluster!r:.40}"
        )


def _own(
    gpu: str,
    gpus: int | None,
    nodes: int,
    intra_gb_s: float | None,
    inter_gb_s: float | None,
    **_: float | None,
) -> Instance:
    """A machine that is in no table."""
    known = find_gpu(gpu)
    if gpus is None:
        raise UserError(f"gpu={gpu!r:.40} needs gpus, the number of them in a machine")
    if gpus > 1 and intra_gb_s is None:
        raise UserError("several GPUs in a machine need intra_gb_s, GB/s between them one way")
    if nodes != 1 and inter_gb_s is None:
        raise UserError("several machines need inter_gb_s, GB/s of a whole machine one way")
    return Instance(
        name=f"{gpus} x {known.name}",
        gpu=known.name,
        gpus=gpus,
        intra_gb_per_s=intra_gb_s if gpus > 1 else None,
        wire="nvlink" if (intra_gb_s or 0) >= NVLINK_GB_S else "pcie",
        inter_gbit_per_s=8 * (inter_gb_s or 1.0),
        date="now",
        source="given by you",
    )


def _changed(given: dict[str, float | None], rails: int | None) -> dict[str, float]:
    """The fields of an Instance that were given."""
    changed = {
        "intra_gb_per_s": given["intra_gb_s"],
        "inter_gbit_per_s": None if given["inter_gb_s"] is None else 8 * given["inter_gb_s"],
        "host_gib": given["host_gib"],
        "kw": given["kw"],
        "rails": rails,
    }
    return {name: value for name, value in changed.items() if value is not None}


def _cluster(
    machine: Instance,
    nodes: int,
    used: int,
    oversubscription: float,
    service: str | None,
    usd_per_hour: float | None,
) -> Cluster:
    gpu, out = find_gpu(machine.gpu), network(machine.network)
    inter = machine.inter_gbit_per_s * GIGA / 8 / machine.gpus
    intra = machine.intra_gb_per_s * GIGA if machine.intra_gb_per_s else inter
    reached = generation(gpu.generation)
    flops = _matmul_flops(gpu, reached.products)
    low = flops.get("bf16", flops.get("fp16", flops.get("fp32", 0.0)))
    attention = gpu.attention_tflops * TERA if gpu.attention_tflops else low / 2
    watts = gpu.watts * machine.gpus if gpu.watts else None
    wire = machine.wire or "pcie"
    return Cluster(
        name=machine.name,
        nodes=nodes,
        devices_per_node=used,
        memory_bytes=gpu.memory_bytes,
        matmul_flops=flops,
        memory_bytes_per_s=gpu.memory_bytes_per_s * REACHED["memory"],
        intra=Link(intra * REACHED["intra"], 0.0, 1, wire),
        few={
            row.ranks: Link(row.gb_per_s * GIGA * REACHED["intra"], 0.0, 1, wire)
            for row in meshes()
            if row.instance == machine.name
        },
        inter=Link(inter * out.share, out.extra_us * MICRO),
        multiprocessors=gpu.multiprocessors,
        attention_flops=dict.fromkeys(("bf16", "fp16"), attention * reached.attention),
        usd_per_hour=_usd(machine.name, service, usd_per_hour),
        rails=math.ceil((machine.rails or 0) * used / machine.gpus),
        oversubscription=oversubscription,
        host_memory_bytes=machine.host_gib * GIB if machine.host_gib else None,
        kw=machine.kw or (watts / 1000 if watts else None),
        gpu=gpu.name,
        generation=gpu.generation,
    )


def _matmul_flops(gpu: GPU, reached: float) -> dict[str, float]:
    """Reached FLOP/s by dtype: from the best measured bf16 product, others in the same ratio to
    their peak; in 8 bits from the best measured one, where there is one."""
    share = reached
    if gpu.matmul_flops is not None:
        share *= gpu.matmul_flops / gpu.peak_flops["bf16"]
    flops = {dtype: peak * share for dtype, peak in gpu.peak_flops.items()}
    if gpu.matmul_fp8_tflops is not None:
        flops["fp8"] = gpu.matmul_fp8_tflops * TERA * reached
    return flops


def _usd(instance: str, service: str | None, usd_per_hour: float | None) -> float | None:
    """Of one node; None where nobody's price is recorded that could be meant."""
    on_demand = [each for each in recorded_prices(instance) if each.kind == "on demand"]
    if usd_per_hour is None and service is None and not on_demand:
        return None
    return price(instance, service, usd_per_hour).usd_per_hour


def tile_fill(rows: float, columns: float, multiprocessors: int, inner: float = 0.0) -> float:
    """The share of a GPU that a matrix product of this size keeps busy, above 0 and at most 1.

    The result is cut into tiles of 256 x 128, each multiprocessor makes one at a time, and tiles at
    the edge and multiprocessors in the last round are partly idle. The better orientation counts.
    Where there are more multiprocessors than tiles, several share a tile's inner dimension, as long
    as each has enough of it: so are the gradients of narrow weights summed over many tokens.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave
    quantization; CUTLASS, efficient_gemm.md, section on parallelized reductions.
    """
    if not multiprocessors:
        return 1.0
    best = 0.0
    for high, wide in ((256, 128), (128, 256)):
        tiles = math.ceil(rows / high) * math.ceil(columns / wide)
        parts = max(1.0, min(multiprocessors // tiles, inner / LEAST_INNER))
        rounds = math.ceil(parts * tiles / multiprocessors)
        best = max(best, parts * rows * columns / (high * wide) / (rounds * multiprocessors))
    return best
