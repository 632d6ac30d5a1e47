"""What compiling costs before it gains: seconds once, and the steps after which they are back."""

from collections.abc import Sequence
from math import ceil, inf
from statistics import median

from benchmarks.compare import Row
from helpers.commands import markdown

PAIRS = {  # compiled: the same as it is
    "one-compiled": "one",
    "engine-compiled": "engine-one",
    "engine-bf16-compiled": "engine-bf16",
}
STEPS = 1000  # of the run in which compiling is counted


def table(rows: Sequence[Row]) -> str:
    """Of each compiled peer: its gain without and with the compile time, and when that is back."""
    by_name = {row.peer.name: row for row in rows if not row.failure}
    head = ("", "gain without compiling", f"over {STEPS:,} steps", "compiling, s")
    lines = []
    for name, plain in PAIRS.items():
        if name not in by_name or plain not in by_name:
            continue
        row, other = by_name[name], by_name[plain]
        mine, theirs = (median(one.step_s[1:]) for one in (row, other))
        once = max(rank["compile_s"] for rank in row.memory)
        gain = median(b / a for a, b in zip(row.step_s[1:], other.step_s[1:]))
        over = STEPS * theirs / (STEPS * mine + once)
        back = once / (theirs - mine) if theirs > mine else inf
        after = "never" if back == inf else f"{ceil(back):,}"
        title = row.peer.title.strip("*")
        lines.append((title, f"{gain:.2f}", f"{over:.2f}", f"{once:.1f}", after))
    return markdown((*head, "back after, steps"), lines)
