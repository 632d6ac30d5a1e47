"""The drawn idea of a compiler: what passes through memory, operation by operation and joined.

fig, table, alt = draw_fusion()
"""

from typing import TYPE_CHECKING

from helpers.lab.figures.drawing import WHITE, WHOLE, arrow, box, legend_below, words_at
from helpers.lab.figures.style import BLUE, GREEN, ORANGE, Picture, new_figure
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# GELU as GPT-2 writes it, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))): operation, tensors it reads
GELU = (
    ("x³", 1),
    ("0.0447 ·", 1),
    ("x +", 2),
    ("√(2/π) ·", 1),
    ("tanh", 1),
    ("1 +", 1),
    ("0.5 · x", 1),
    ("multiply", 2),
)
JOINED = (("all of it", 1),)
LANES = {"as it is": GELU, "compiled": JOINED}
ARROWS = {"read": BLUE, "write": ORANGE}
WIDTH = 1.3  # of an operation


def passes(operations: tuple[tuple[str, int], ...]) -> int:
    """Tensors that are read from memory or written to it: each operation writes one."""
    return sum(reads + 1 for _, reads in operations)


def draw_fusion() -> Picture:
    """A lane each: operations on top, memory below, an arrow for each tensor read or written."""
    fig, axes = new_figure(4.2, grid=None)
    end = WIDTH * len(GELU)
    for lane, (name, operations) in enumerate(LANES.items()):
        top = -2.6 * lane
        _lane(axes, top, name, operations, end)
    axes.set(xlim=(-1.9, end + 0.1), ylim=(-4.0, 1.2))
    axes.axis("off")
    for words, colour in ARROWS.items():
        axes.plot([], [], color=colour, linewidth=2, label=words)
    legend_below(fig, ncols=2)
    rows = {
        name: {
            "operations": len(operations),
            "tensors read": sum(reads for _, reads in operations),
            "tensors written": len(operations),
        }
        for name, operations in LANES.items()
    }
    alt = "GELU in two lanes above a bar for memory. " + " ".join(
        f"{name.capitalize()}: {row['operations']} operations, {row['tensors read']} tensors read, "
        f"{row['tensors written']} written."
        for name, row in rows.items()
    )
    return fig, table_of(rows, "GELU"), alt


def _lane(
    axes: "Axes", top: float, name: str, operations: tuple[tuple[str, int], ...], end: float
) -> None:
    words_at(axes, (-0.25, top + 0.35), name, ha="right", weight="bold")
    words_at(axes, (-0.25, top - 0.95), "memory", ha="right")
    box(axes, (0, top - 1.2), end, 0.5, WHOLE, line=1.2)
    start = (end - WIDTH * len(operations)) / 2
    for place, (words, reads) in enumerate(operations):
        _operation(axes, start + WIDTH * place, top, words, reads)
    total = f"{passes(operations)} tensors read or written"
    words_at(axes, (end, top + 0.95), total, ha="right")


def _operation(axes: "Axes", x: float, y: float, words: str, reads: int) -> None:
    """A box, with arrows up for what it reads and one down for what it writes."""
    box(axes, (x + 0.06, y), WIDTH - 0.12, 0.7, WHITE, edge=GREEN, line=1.2)
    words_at(axes, (x + WIDTH / 2, y + 0.35), words, size=9)
    for number in range(reads):
        place = x + 0.25 + 0.22 * number
        arrow(axes, (place, y - 0.7), (place, y), ARROWS["read"], line=1.6)
    place = x + WIDTH - 0.3
    arrow(axes, (place, y), (place, y - 0.7), ARROWS["write"], line=1.6)
