"""What a step takes, and what it holds, as sequences grow: one process, and parts over ranks of cp.

Held is what a rank's memory grows by over its state at the fullest moment: activations, what
arrives from others, and what the allocator keeps. The losses are compared step by step.
"""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import compare
from benchmarks.compare import Rounds, Row
from benchmarks.registry import Peer
from benchmarks.work import Work
from helpers.commands import markdown

HEAD = ("tokens", "", "processes × threads", "step, s", "share of one process", "held, MB")
HEAD += ("losses agree",)


def measure(
    peers: Sequence[Peer], works: Sequence[Work], cores: int, rounds: Rounds, say: Callable
) -> dict[int, list[Row]]:
    """The peers' rows by length."""
    found = {}
    for work in works:
        say(f"sequences of {work.seq} tokens")
        found[work.seq] = compare.compare(peers, work, cores, rounds, say)
    return found


def held_bytes(row: Row) -> int | None:
    """Of the fullest rank; None where the system does not tell."""
    grown = [
        rank["peak"] - rank["base"] - sum(rank[name] for name in compare.STATE)
        for rank in row.memory
        if rank.get("peak")
    ]
    return max(grown, default=None)


def table(found: dict[int, list[Row]]) -> str:
    return markdown(HEAD, (_cells(length, row) for length, rows in found.items() for row in rows))


def _cells(length: int, row: Row) -> list[str]:
    if row.failure:
        return compare.short(HEAD, f"{length:,}", row.peer.title, row.failure)
    if not row.share:
        return compare.short(HEAD, f"{length:,}", row.peer.title, "nothing to compare with")
    _, share, _ = compare.quartiles(row.share)
    seconds = sorted(row.step_s[i] for i in row.timed)[len(row.timed) // 2]
    held = held_bytes(row)
    return [
        f"{length:,}",
        row.peer.title,
        f"{row.peer.ranks} × {row.threads}",
        f"{seconds:.2f}",
        f"{share:.2f}",
        "not counted" if held is None else f"{held / 1e6:.0f}",
        "yes" if row.agrees else f"**NO**, off by {row.loss_off:.0e}",
    ]


def to_dict(found: dict[int, list[Row]]) -> list[dict[str, Any]]:
    return [
        compare.to_dict(row) | {"seq": length, "held_bytes": held_bytes(row)}
        for length, rows in found.items()
        for row in rows
    ]
