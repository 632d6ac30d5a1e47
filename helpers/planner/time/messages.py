"""What a message between ranks is, and how long it takes.

    seconds(job, cluster, message)           # on the link that its axis has in this layout
    message_s(message, link)                 # on a link

A payload is the whole tensor that a group reduces or gathers, or that one rank sends another. The
messages of a step are in tensor_messages.py, pipeline_messages.py and data_messages.py, by axis.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from helpers.planner.hardware.catalog import MICRO, protocols
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link
from helpers.planner.model.training_job import Job

# kind: the share of the payload that a rank sends, with n ranks
SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
}


@dataclass(frozen=True)
class Message:
    """Equal messages of one rank in one step.

    axis: of the mesh; `dp` for dp_replicate and dp_shard together, `a x b` for two axes together.
    when: beside each `forward` or `backward`, or the `last` backward alone; `again` where blocks
        are recomputed; `step` after the update, `end` before it, when all sums are there.
    """

    axis: str
    kind: str
    payload_bytes: float
    count: float
    ranks: int
    what: str
    when: str

    @property
    def sent_bytes(self) -> float:
        """What the rank puts on the wire for all of them.

        Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms, theorem 1.
        """
        return self.count * self.payload_bytes * SENT[self.kind](self.ranks)


class Sent(NamedTuple):
    """What a part of the model sends, as tables of the axes say it: when, kind and what as of a
    Message, and how many `each` time."""

    when: str
    kind: str
    what: str
    each: int = 1


def message_s(message: Message, link: Link) -> float:
    """Seconds of one of these messages: its starts, and its bytes at the link's pace.

    Over a link with a known wire it is the fastest of NCCL's ways. On one that was measured as a
    whole a send is one start; a reduction or a gather among n starts log2(n) times, as a tree does,
    and twice that where it goes both ways.
    """
    return _message_s(message.kind, message.payload_bytes, message.ranks, link)


@lru_cache(maxsize=65536)
def _message_s(kind: str, payload_bytes: float, ranks: int, link: Link) -> float:
    sent = payload_bytes * SENT[kind](ranks)
    if link.wire:
        ways = nccl_ways(kind, ranks, link.nodes, link.wire)
        return link.latency_s + min(
            start_s + sent / (link.bytes_per_s * share) for start_s, share in ways
        )
    steps = 1 if kind == "send" else math.ceil(math.log2(ranks))
    starts = steps * (2 if kind == "all_reduce" else 1)
    return starts * link.latency_s + sent / link.bytes_per_s


@cache
def nccl_ways(kind: str, ranks: int, nodes: int, wire: str) -> list[tuple[float, float]]:
    """Seconds before the first byte, and the share of the bandwidth, of each way to send.

    A ring of n ranks takes n - 1 hops for a gather or a scatter and twice that for an all-reduce,
    as many of them between nodes as there are nodes. A tree, for all-reduces, takes those of one
    node and log2 of the nodes, both ways.

    Source: github.com/NVIDIA/nccl v2.18.5, src/graph/tuning.cc.
    """
    ways = []
    for way in protocols():
        inside_us = getattr(way, f"{wire}_us")
        if way.algorithm == "tree":
            if kind != "all_reduce":
                continue
            hops_us = (ranks / nodes - 1) * inside_us + math.log2(nodes) * way.network_us
            hops_us *= 2
        else:
            hops, out = _ring_hops(kind, ranks, nodes)
            hops_us = (hops - out) * inside_us + out * way.network_us
        ways.append(((way.start_us + hops_us) * MICRO, way.share))
    return ways


def _ring_hops(kind: str, ranks: int, nodes: int) -> tuple[int, int]:
    """Hops of a ring, and how many of them leave a node."""
    if kind == "send":
        return 1, min(1, nodes - 1)
    if kind == "all_reduce":
        return 2 * (ranks - 1), 2 * nodes if nodes > 1 else 0
    return ranks - 1, nodes - 1


def link_of(job: Job, cluster: Cluster, axis: str, kind: str = "all_reduce") -> Link:
    """The link of the groups of an axis for a kind of message; of `dp`, over both data axes; of
    `pp`, between the two neighbours that are furthest apart."""
    link = cluster.link_over(ranks_and_strides(job, axis), kind)
    if job.program.one_card and axis.startswith("dp_shard") and job.plan.zero == 3:
        return cluster.one_card(link, job.program.one_card)
    return link


def ranks_and_strides(job: Job, axis: str) -> list[tuple[int, int]]:
    """How many ranks a group has along each of its axes, and how far apart they are."""
    ranks = job.plan.degrees | {"dp": job.plan.dp}
    return [
        (ranks[one], job.stride("dp_shard" if one == "dp" else one)) for one in axis.split(" x ")
    ]


def seconds(job: Job, cluster: Cluster, message: Message) -> float:
    """Seconds of one of these messages in this layout on this cluster."""
    way_s = message_s(message, link_of(job, cluster, message.axis, message.kind))
    if cluster.unit_s and message.axis.startswith("dp_shard") and job.plan.zero == 3:
        return way_s + cluster.unit_s
    return way_s
