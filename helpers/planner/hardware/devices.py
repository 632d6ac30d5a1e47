"""A cluster as the formulas see it: equal nodes of equal devices, and the links between them.

cluster.devices, cluster.rate("bf16")
cluster.link_over([(8, 1)])       # the link that a group of neighbouring ranks has
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from helpers.engine.errors import UserError, check_count
from helpers.planner.hardware.catalog import GIB
from helpers.planner.hardware.links import Link, axes_span
from helpers.planner.hardware.lookup import is_amount

OPERATION_S = 4e-6  # between two small kernels on a GPU: launch latency, not compute
HOST_BYTES_PER_S = 25e9  # a device's copies to host memory: PCIe 4 x16 at 0.8
CONTEXT_BYTES = 0.8 * GIB  # a CUDA context, NCCL's buffers and cuBLAS's workspaces
DEVIATION = 0.006  # of nodes' seconds for equal work, as a share of them
MOST_DEVICES = 1_000_000  # more than anyone has joined
# numbers of a Cluster
ABOVE_0 = ("memory_bytes", "memory_bytes_per_s", "host_bytes_per_s", "oversubscription")
FROM_0 = ("operation_s", "unit_s", "context_bytes", "deviation", "multiprocessors")
ABOVE_0_OR_NONE = ("others_bytes_per_s", "together", "host_memory_bytes", "usd_per_hour", "kw")
FROM_0_OR_NONE = ("host_operation_s",)


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices.

    memory_bytes: that a program can have on a device. context_bytes: of those, what the libraries
        take before anything is computed.
    matmul_flops: reached by large matrix products, by dtype.
    memory_bytes_per_s: reached by operations that stream through the device's memory.
    others_bytes_per_s: reached by a step's operations between its products, of which a processor
        computes some slower than it moves their bytes; `memory_bytes_per_s` where None.
    operation_s: the least time of an operation, however small.
    intra, inter: links inside a node, and out of it for one device while all of them send.
    few: links inside a node by the number of ranks that they join at most, where few have less than
        `intra`.
    rails: network cards of a node; as many as devices where 0. oversubscription: how many times
        what the nodes can send is more than what the network between them carries.
    host_bytes_per_s: of a device's copies to host memory, while all devices of a node copy.
    host_memory_bytes: of a node; None where not known.
    host_operation_s: that a device's host needs to start one of our operations; None where it is
        the program's own number.
    multiprocessors: of a device, 0 where products are not cut into tiles over them.
    together: devices that can compute at the same time, where they share cores.
    overlaps: can messages travel while the device computes?
    measured: links inside a node by kind of message, where they were measured apart; `intra` else.
    attention_flops: reached by attention in one kernel, by dtype; a half of `matmul_flops` where
        not known.
    unit_s: beside its way, of each gather and sum of ZeRO-3's units, which are packed for it.
    usd_per_hour: of one node; None where no price is known. kw: that a node draws at most, of its
        GPUs alone where the machine's is not known; None where neither is.
    deviation: of nodes' seconds for equal work, as a share of them.
    device: `cuda`, or `cpu` where devices are cores.
    gpu, generation: of gpus.csv and generations.csv; empty where the device is none of them.
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
    attention_flops: dict[str, float] = field(default_factory=dict, hash=False)
    few: dict[int, Link] = field(default_factory=dict, hash=False)
    unit_s: float = 0.0
    others_bytes_per_s: float | None = None
    usd_per_hour: float | None = None
    rails: int = 0
    oversubscription: float = 1.0
    context_bytes: float = CONTEXT_BYTES
    host_memory_bytes: float | None = None
    host_operation_s: float | None = None
    kw: float | None = None
    deviation: float = DEVIATION
    device: str = "cuda"
    gpu: str = ""
    generation: str = ""

    def __post_init__(self) -> None:
        for name in ("nodes", "devices_per_node"):
            check_count(name, getattr(self, name))
        if self.devices > MOST_DEVICES:
            raise UserError(
                f"{self.nodes:,} nodes of {self.devices_per_node} are {self.devices:,} devices; "
                f"the planner knows nothing about more than {MOST_DEVICES:,}"
            )
        for name in (*ABOVE_0, *ABOVE_0_OR_NONE, *FROM_0, *FROM_0_OR_NONE):
            _check_number(name, getattr(self, name))
        for name in ("matmul_flops", "attention_flops"):
            for dtype, rate in _rows(name, getattr(self, name)):
                _check_number(f"{name} in {dtype}", rate)
        for name in ("intra", "inter"):
            _check_link(name, getattr(self, name))
        for name in ("measured", "few"):
            for of, link in _rows(name, getattr(self, name)):
                _check_link(f"{name} of {of}", link)
        if self.oversubscription < 1:
            raise UserError(f"oversubscription is 1 or more, not {self.oversubscription!r:.40}")
        if type(self.rails) is not int or self.rails < 0:
            raise UserError(f"rails is a whole number of network cards, not {self.rails!r:.40}")
        if not isinstance(self.overlaps, bool):
            raise UserError(f"overlaps must be True or False, not {self.overlaps!r:.40}")
        for name in ("name", "device", "gpu", "generation"):
            if not isinstance(getattr(self, name), str):
                raise UserError(f"{name} must be a word, not {getattr(self, name)!r:.40}")

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    def rate(self, dtype: str) -> float:
        """FLOP/s of large matrix products in this dtype.

        Raises:
            UserError: the devices have no fast arithmetic in it.
        """
        if not isinstance(dtype, str) or dtype not in self.matmul_flops:
            known = ", ".join(self.matmul_flops)
            raise UserError(f"{self.name} has no matrix products in {dtype}; it has {known}")
        return self.matmul_flops[dtype]

    def attention_rate(self, dtype: str) -> float:
        """FLOP/s of attention in one kernel."""
        return self.attention_flops.get(dtype) or self.rate(dtype) / 2

    def others_s(self, moved_bytes: float) -> float:
        """Seconds of operations between products that move so many bytes."""
        return moved_bytes / (self.others_bytes_per_s or self.memory_bytes_per_s)

    def link_over(self, axes: Sequence[tuple[int, int]], kind: str = "all_reduce") -> Link:
        """The link of the worst group with so many ranks along each of some axes, and so far apart,
        while all such send.

        Inside a node it is the node's own. A group over several nodes goes at the pace of its way
        out: each of its ranks in a node brings its share of the node's network, but in an
        all-to-all, where each sends what is its own. Of two ranks that send to each other the
        share is larger where fewer of a node's ranks send out of it, but no more than a network
        card's.
        """
        span = axes_span(axes, self.devices_per_node, self.devices)
        if span.nodes == 1:
            if kind in self.measured or not self.few:
                return self.measured.get(kind, self.intra)
            return self._of_few(2 if kind == "send" else math.prod(ranks for ranks, _ in axes))
        share = self.inter.bytes_per_s * (1 if kind == "all_to_all" else span.least)
        if kind == "send":
            senders = min(min(stride for _, stride in axes), self.devices_per_node)
            share = min(self.card_bytes_per_s, self._node_bytes_per_s / senders)
        pace = min(self.intra.bytes_per_s, share / self.oversubscription)
        return Link(pace, self.inter.latency_s, span.nodes, self.intra.wire)

    def _of_few(self, ranks: int) -> Link:
        """The link of so many ranks of a node whose wires go from pair to pair."""
        joins = [most for most in self.few if most >= ranks]
        return self.few[min(joins)] if joins else self.intra

    def one_card(self, link: Link, share: float) -> Link:
        """A link on which, between nodes, only one network card of each is used, to that share."""
        if link.nodes == 1:
            return link
        return replace(link, bytes_per_s=min(link.bytes_per_s, share * self.card_bytes_per_s))

    @property
    def card_bytes_per_s(self) -> float:
        """What one device can send out of its node when no other does."""
        cards = min(self.rails or self.devices_per_node, self.devices_per_node)
        return self._node_bytes_per_s / cards

    @property
    def _node_bytes_per_s(self) -> float:
        return self.inter.bytes_per_s * self.devices_per_node


def _check_number(name: str, number: Any) -> None:
    if number is None and name in (*ABOVE_0_OR_NONE, *FROM_0_OR_NONE):
        return
    may_be_0 = name in (*FROM_0, *FROM_0_OR_NONE)
    if is_amount(number) or (may_be_0 and type(number) in (int, float) and number == 0):
        return
    words = "0 or a number above it" if may_be_0 else "a number above 0"
    raise UserError(f"{name} must be {words}, not {number!r:.40}")


def _check_link(name: str, link: Any) -> None:
    if not isinstance(link, Link):
        raise UserError(f"{name} must be a Link(bytes_per_s, latency_s), not {link!r:.40}")


def _rows(name: str, table: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(table, dict):
        raise UserError(f"{name} must be a dictionary, not {table!r:.40}")
    return table.items()
