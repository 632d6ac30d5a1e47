"""Bytes of each rank: the training state against its formula, and what a step adds at its peak.

Every configuration gets a fresh group of processes, since a process keeps memory that it once had.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare import STATE, short
from benchmarks.registry import Peer
from benchmarks.serve import Group, PeerFailed
from benchmarks.work import Work, config
from helpers.commands import markdown
from helpers.planner.cost import state_bytes, tensor_parallel_share
from helpers.planner.shape.families import model_shape

HEAD = ("", "state per rank, MB", "formula, MB", "off", "peak per rank, MB", "share of one process")


@dataclass
class Row:
    """One configuration.

    ranks: by rank, bytes of base (before the model), peak, parameters, gradients and optimizer.
    predicted: the formula's state of the largest rank, None for peers that are not the engine.
    """

    peer: Peer
    predicted: int | None
    failure: str = ""
    ranks: list[dict[str, int]] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    @property
    def state(self) -> int | None:
        """Of the largest rank, counted from the live tensors."""
        if not all(key in rank for rank in self.ranks for key in STATE):
            return None
        return max(sum(rank[key] for key in STATE) for rank in self.ranks)

    @property
    def peak(self) -> int:
        """Of the largest rank: resident at the peak, beyond the interpreter and its libraries."""
        return max(rank["peak"] - rank["base"] for rank in self.ranks)


def measure(
    peers: Sequence[Peer], work: Work, cores: int, steps: int, say: Callable[[str], None]
) -> list[Row]:
    """Start each peer alone, take `steps` steps, ask for its memory, stop it."""
    # glibc keeps freed buffers of up to 32 MB for later, and a peak would show what it keeps; with
    # a fixed threshold it gives all above that back. The processes are started after this.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
    rows = []
    for peer in peers:
        say(f"measuring {peer.name}")
        row = Row(peer, predicted_state(peer, work))
        try:
            group = Group(peer, work, cores)
            row.loss = group.steps(list(range(steps))).loss
            row.ranks = group.memory()
            group.close()
        except PeerFailed as failure:
            row.failure = str(failure)
        rows.append(row)
    return rows


def predicted_state(peer: Peer, work: Work) -> int | None:
    if peer.module != "engine_peer":
        return None
    plan = peer.options
    share = tensor_parallel_share(model_shape(config(work)), plan.get("tp", 1))
    shards = plan.get("dp_shard", 1)
    stage = plan.get("zero_stage", 3) if shards > 1 else 0
    stage = 2 if stage == 1 else stage  # with one micro-batch the gradients never stand whole
    return state_bytes(share.total, "fp32", dp_shard=shards, zero_stage=stage).total


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    whole = next((row.peak for row in rows if row.peer.name == "one" and not row.failure), None)
    return markdown(HEAD, (_cells(row, whole) for row in rows))


def _cells(row: Row, whole: int | None) -> list[str]:
    """Of a row; `whole` is the peak of one process."""
    if row.failure:
        return short(HEAD, row.peer.title, row.failure)
    off = f"{row.state / row.predicted - 1:+.1%}" if row.state and row.predicted else ""
    share = f"{row.peak / whole:.2f}" if whole else ""
    return [row.peer.title, _mb(row.state), _mb(row.predicted), off, _mb(row.peak), share]


def _mb(count: int | None) -> str:
    return "not counted" if count is None else f"{count / 1e6:.0f}"


def to_dict(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    values = {"name": row.peer.name, "title": row.peer.title.strip("*"), "ranks": row.peer.ranks}
    if row.failure:
        return values | {"failure": row.failure}
    return values | {
        "options": row.peer.options,
        "by_rank": row.ranks,
        "state_bytes": row.state,
        "predicted_state_bytes": row.predicted,
        "peak_bytes": row.peak,
        "loss": row.loss,
    }
