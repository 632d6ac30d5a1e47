"""What a message between ranks is, and how long it takes.

    seconds(job, cluster, message)           # on the link that its axis has in this layout
    message_s(message, link)                 # on a link

A payload is the whole tensor that a group reduces or gathers, or that one rank sends another. The
messages of a step are in tensor_messages.py, pipeline_messages.py and data_messages.py, by axis.
"""

import math
from dataclasses import dataclass

from helpers.planner.hardware.cluster import Cluster, Link
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

    axis: of the mesh; `dp` for dp_replicate and dp_shard together.
    when: beside each `forward` or `backward`, or the `last` backward alone; `again` where blocks
        are recomputed; `step` after the update.
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


def message_s(message: Message, link: Link) -> float:
    """Seconds of one of these messages: the start, and the bytes at the link's pace.

    A send is one start; a reduction or a gather among n starts log2(n) times, as a tree does, and
    twice that where it goes both ways.
    """
    steps = 1 if message.kind == "send" else math.ceil(math.log2(message.ranks))
    starts = steps * (2 if message.kind == "all_reduce" else 1)
    payload = message.payload_bytes * SENT[message.kind](message.ranks)
    return starts * link.latency_s + payload / link.bytes_per_s


def link_of(job: Job, cluster: Cluster, axis: str, kind: str = "all_reduce") -> Link:
    """The link of the groups of an axis for a kind of message; of `dp`, over both data axes."""
    plan = job.plan
    if axis == "pp":
        return cluster.group_link(2, job.stride("pp"), kind)
    if axis == "dp":
        return cluster.group_link(plan.dp, job.stride("dp_shard"), kind)
    return cluster.group_link(plan.degrees[axis], job.stride(axis), kind)


def seconds(job: Job, cluster: Cluster, message: Message) -> float:
    """Seconds of one of these messages in this layout on this cluster."""
    return message_s(message, link_of(job, cluster, message.axis, message.kind))
