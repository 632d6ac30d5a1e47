"""What lies between a rank and its peers, and over how many nodes a group of ranks lies.

    span = group_span(ranks=6, stride=1, in_node=8, devices=24)
    span.nodes, span.least                # 2 nodes, 2 of its ranks in one of them

Ranks are numbered node by node, and the ranks of a group are `stride` apart. Where their number
does not divide a node some groups lie inside one and others over two: all wait for the slowest.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import WIRES
from helpers.planner.hardware.lookup import LARGEST


@dataclass(frozen=True)
class Link:
    """What lies between a rank and its peers.

    bytes_per_s: one way, as collectives reach it.
    latency_s: before a message's first byte, beside what `wire` is known to take.
    nodes: over which the group lies.
    wire: inside a node, `nvlink` or `pcie`, for NCCL's own delays; empty where the link was
        measured, whose `latency_s` is all that there is.
    """

    bytes_per_s: float
    latency_s: float
    nodes: int = 1
    wire: str = ""

    def __post_init__(self) -> None:
        try:  # a search makes a link for every message
            right = self.bytes_per_s > 0 and 0 <= self.latency_s < LARGEST
            right = right and (self.bytes_per_s < LARGEST or self.bytes_per_s == math.inf)
        except TypeError:
            right = False
        if self.wire not in ("", *WIRES):
            raise UserError(f"a link's wire is {' or '.join(WIRES)}, not {self.wire!r:.40}")
        if type(self.nodes) is not int or not 0 < self.nodes < LARGEST:
            raise UserError(f"a link lies over one node or more, not {self.nodes!r:.40}")
        if not right:
            raise UserError(
                f"a link has bytes/s above 0 and no negative seconds, not {self.bytes_per_s!r:.40} "
                f"and {self.latency_s!r:.40}"
            )


class Span(NamedTuple):
    """Where a group lies: over so many nodes, with at least so many ranks in each of them."""

    nodes: int
    least: int


def axes_span(axes: Sequence[tuple[int, int]], in_node: int, devices: int) -> Span:
    """The worst of all groups with so many ranks along each of some axes, and so far apart.

    Axes that stand beside each other are as one; of others each node's share is a product.
    """
    (ranks, stride), *others = sorted(axes, key=lambda axis: axis[1])
    apart = []
    for more, further in others:
        if further == ranks * stride:
            ranks *= more
        elif more > 1:
            apart.append((more, further))
    span = group_span(ranks, stride, in_node, devices)
    for more, further in apart:
        other = group_span(more, further, in_node, devices)
        span = Span(span.nodes * other.nodes, span.least * other.least)
    return span


@lru_cache(maxsize=4096)
def group_span(ranks: int, stride: int, in_node: int, devices: int) -> Span:
    """The worst of all groups of `ranks` that are `stride` apart, on nodes of `in_node`: of those
    over most nodes, the one with the fewest ranks in one.

    Args:
        devices: of the whole cluster.
    """
    if ranks == 1 or devices <= in_node:
        return Span(1, ranks)
    together = ranks * stride  # so many ranks are in groups of each other
    if in_node % together == 0:
        return Span(1, ranks)
    if together % in_node == 0 and (stride % in_node == 0 or in_node % stride == 0):
        return Span(together // max(in_node, stride), max(1, in_node // stride))
    worst, seen = Span(1, ranks), set()
    for block in range(max(1, devices // together)):
        if (start := block * together % in_node) in seen:
            break
        seen.add(start)
        for first in range(start, start + min(stride, in_node)):
            in_nodes = Counter((first + rank * stride) // in_node for rank in range(ranks))
            span = Span(len(in_nodes), min(in_nodes.values()))
            worst = max(worst, span, key=lambda span: (span.nodes, -span.least))
    return worst
