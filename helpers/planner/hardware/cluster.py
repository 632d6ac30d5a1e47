"""Machines as the planner's formulas see them: how fast real work goes, not what a sheet promises.

    cluster = make_cluster("p4d.24xlarge", nodes=4)
    cluster.devices, cluster.memory_bytes, cluster.usd_per_hour
    cluster.group_link(ranks=8, stride=1)        # the link that a group of neighbouring ranks has

What of a nominal rate is reached is one table, REACHED, the same for every GPU and every run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import GPU
from helpers.planner.hardware.lookup import (
    find_gpu,
    find_instance,
    price,
    recorded_prices,
    services,
)

# Shares of a nominal rate that real work reaches, and the seconds before it starts.
REACHED = {
    # of the best matrix product ever measured on the GPU, by training over days: the one number
    # that was fitted, to the first eight of published/runs.json together
    "matmul": 0.90,
    # of the peak, where no best product was measured: the mean of those that were
    "unmeasured matmul": 0.80,
    # github.com/calculon-ai/calculon systems/a100_80g.json, for tensors of 10 MB and more
    "memory": 0.90,
    # 235 of 300 GB/s: github.com/stas00/ml-engineering network/README.md, all-reduce in a node
    "intra": 0.78,
    # calculon, as above: InfiniBand
    "inter": 0.90,
}
OPERATION_S = 4e-6  # between two small kernels on a GPU: launch latency, not compute
INTRA_LATENCY_S, INTER_LATENCY_S = 10e-6, 20e-6  # calculon, as above
BY_ITSELF = ("send", "all_to_all")  # kinds of which each rank sends its own out of the node
HOST_BYTES_PER_S = 25e9  # a device's copies to host memory: PCIe 4 x16 at 0.8


@dataclass(frozen=True)
class Link:
    """What lies between a rank and its peers: bytes/s one way as collectives reach it, and the
    seconds before a message's first byte."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices.

    matmul_flops: reached by large matrix products, by dtype.
    memory_bytes_per_s: reached by operations that stream through the device's memory.
    operation_s: the least time of an operation, however small.
    intra, inter: links inside a node, and out of it for one device while all of them send.
    multiprocessors: of a device, 0 where products are not cut into tiles over them.
    together: devices that can compute at the same time, where they share cores.
    overlaps: can messages travel while the device computes?
    measured: links inside a node by kind of message, where they were measured apart; `intra` else.
    attention_flops: reached by attention in one kernel, in 16 bits; a half of `matmul_flops` where
        not known.
    usd_per_hour: of one node; None where no price is known.
    """

    name: str
    nodes: int
    devices_per_node: int
    memory_bytes: int
    matmul_flops: dict[str, float] = field(hash=False)
    memory_bytes_per_s: float
    intra: Link
    inter: Link
    operation_s: float = OPERATION_S
    host_bytes_per_s: float = HOST_BYTES_PER_S
    multiprocessors: int = 0
    together: float | None = None
    overlaps: bool = True
    measured: dict[str, Link] = field(default_factory=dict, hash=False)
    attention_flops: float | None = None
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "devices_per_node"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise UserError(f"{name} must be a whole number of at least 1, not {count!r}")

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def rate(self, dtype: str) -> float:
        """FLOP/s of large matrix products in this dtype.

        Raises:
            UserError: the devices have no fast arithmetic in it.
        """
        if dtype not in self.matmul_flops:
            known = ", ".join(self.matmul_flops)
            raise UserError(f"{self.name} has no matrix products in {dtype}; it has {known}")
        return self.matmul_flops[dtype]

    def attention_rate(self, dtype: str) -> float:
        """FLOP/s of attention in one kernel."""
        if dtype != "fp32" and self.attention_flops:
            return self.attention_flops
        return self.rate(dtype) / 2

    def group_link(self, ranks: int, stride: int, kind: str = "all_reduce") -> Link:
        """The link of a group of `ranks` that are `stride` apart, while all such groups send."""
        return self.link_over([(ranks, stride)], kind)

    def link_over(self, axes: Sequence[tuple[int, int]], kind: str = "all_reduce") -> Link:
        """The link of a group with so many ranks along each of some axes, and so far apart.

        Inside a node it is the node's own. A group over several nodes goes at the pace of its way
        out: each of its ranks in a node brings its share of the node's network, but where each
        sends what is its own.
        """
        in_node = ranks_in_node(axes, self.devices_per_node)
        if in_node is None:
            return self.measured.get(kind, self.intra)
        out = self.inter.bytes_per_s * (1 if kind in BY_ITSELF else in_node)
        return Link(min(self.intra.bytes_per_s, out), self.inter.latency_s)


def ranks_in_node(axes: Sequence[tuple[int, int]], devices_per_node: int) -> int | None:
    """How many ranks of a group stand in one node; None where all of them do.

    Args:
        axes: of the group: its ranks along each, and how far apart they are.
    """
    if sum((ranks - 1) * stride for ranks, stride in axes) < devices_per_node:
        return None
    return math.prod(min(ranks, max(1, devices_per_node // stride)) for ranks, stride in axes)


def make_cluster(
    instance: str,
    nodes: int = 1,
    service: str = "ec2",
    usd_per_hour: float | None = None,
) -> Cluster:
    """The cluster of `nodes` instances of instances.csv.

    Args:
        service: whose price is taken, as in lookup.price.
        usd_per_hour: your own price of one instance.

    Raises:
        UserError: an unknown instance or service, or nodes that are no whole number above 0.
    """
    machine = find_instance(instance)
    gpu = find_gpu(machine.gpu)
    inter = machine.inter_node_bits_per_s / 8 / machine.gpus
    return Cluster(
        name=machine.name,
        nodes=nodes,
        devices_per_node=machine.gpus,
        memory_bytes=gpu.memory_bytes,
        matmul_flops=_matmul_flops(gpu),
        memory_bytes_per_s=gpu.memory_bytes_per_s * REACHED["memory"],
        intra=Link((machine.intra_node_bytes_per_s or inter) * REACHED["intra"], INTRA_LATENCY_S),
        inter=Link(inter * REACHED["inter"], INTER_LATENCY_S),
        multiprocessors=gpu.multiprocessors,
        attention_flops=gpu.attention_flops,
        usd_per_hour=_usd(machine.name, service, usd_per_hour),
    )


def with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """The same machines, another number of them."""
    return replace(cluster, nodes=nodes)


def tile_fill(rows: int, columns: int, multiprocessors: int) -> float:
    """The share of a GPU that a matrix product of this size keeps busy, above 0 and at most 1.

    The result is cut into tiles of 256 x 128, each multiprocessor makes one at a time, and tiles at
    the edge and multiprocessors in the last round are partly idle. The better orientation counts.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave
    quantization.
    """
    if not multiprocessors:
        return 1.0
    best = 0.0
    for high, wide in ((256, 128), (128, 256)):
        tiles = math.ceil(rows / high) * math.ceil(columns / wide)
        rounds = math.ceil(tiles / multiprocessors)
        best = max(best, rows * columns / (high * wide) / (rounds * multiprocessors))
    return best


def _matmul_flops(gpu: GPU) -> dict[str, float]:
    """Reached FLOP/s by dtype: from the best measured bf16 product, others in the same ratio to
    their peak."""
    share = REACHED["unmeasured matmul"]
    if gpu.matmul_flops is not None:
        share = gpu.matmul_flops / gpu.peak_flops["bf16"]
    return {dtype: peak * share * REACHED["matmul"] for dtype, peak in gpu.peak_flops.items()}


def _usd(instance: str, service: str, usd_per_hour: float | None) -> float | None:
    known = {recorded.service for recorded in recorded_prices(instance)}
    if usd_per_hour is None and service not in known and service in services():
        return None
    return price(instance, service, usd_per_hour).usd_per_hour
