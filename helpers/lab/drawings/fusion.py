"""The drawn idea of a compiler: what passes through memory, operation by operation and joined.

fig, table, alt = draw_fusion()
"""

from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.drawings.parallelism_map import INK, WHOLE, Drawing
from helpers.lab.figures.training_plots import BLUE, GREEN, ORANGE, new_figure

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
LANES = (("as it is", GELU), ("compiled", JOINED))


def passes(operations: tuple[tuple[str, int], ...]) -> int:
    """Tensors that are read from memory or written to it: each operation writes one."""
    return sum(reads + 1 for _, reads in operations)


def draw_fusion() -> Drawing:
    """A lane each: operations on top, memory below, an arrow for each tensor read or written."""
    pandas = need("pandas", "notebooks")
    fig, axes = new_figure(4.2, grid=None)
    width = 1.3
    for lane, (name, operations) in enumerate(LANES):
        top = -2.6 * lane
        middle = width * (len(GELU) - len(operations)) / 2
        axes.text(-0.25, top + 0.35, name, ha="right", va="center", weight="bold", color=INK)
        axes.text(-0.25, top - 0.95, "memory", ha="right", va="center", color=INK)
        _box(axes, 0, top - 1.2, width * len(GELU), 0.5, WHOLE)
        for i, (words, reads) in enumerate(operations):
            _operation(axes, middle + width * i, top, width, words, reads)
        total = f"{passes(operations)} tensors read or written"
        axes.text(width * len(GELU), top + 0.95, total, ha="right", va="center", color=INK)
    axes.set(xlim=(-1.9, width * len(GELU) + 0.1), ylim=(-4.0, 1.2))
    axes.axis("off")
    _key(axes)
    rows = {
        name: {
            "operations": len(operations),
            "tensors read": sum(reads for _, reads in operations),
            "tensors written": len(operations),
        }
        for name, operations in LANES
    }
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("GELU")
    alt = "GELU in two lanes above a bar for memory. " + " ".join(
        f"{name.capitalize()}: {row['operations']} operations, {row['tensors read']} tensors read, "
        f"{row['tensors written']} written."
        for name, row in rows.items()
    )
    return fig, table, alt


def _operation(axes: "Axes", x: float, y: float, width: float, words: str, reads: int) -> None:
    """A box, with arrows up for what it reads and one down for what it writes."""
    _box(axes, x + 0.06, y, width - 0.12, 0.7, "white", words)
    for number in range(reads):
        _arrow(axes, x + 0.25 + 0.22 * number, y - 0.7, y, BLUE)
    _arrow(axes, x + width - 0.3, y, y - 0.7, ORANGE)


def _box(
    axes: "Axes", x: float, y: float, width: float, height: float, colour: str, words: str = ""
) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec=GREEN if words else INK, lw=1.2))
    axes.text(x + width / 2, y + height / 2, words, ha="center", va="center", size=9, color=INK)


def _arrow(axes: "Axes", x: float, start: float, end: float, colour: str) -> None:
    looks = {"arrowstyle": "-|>", "color": colour, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(x, end), xytext=(x, start), arrowprops=looks)


def _key(axes: "Axes") -> None:
    from matplotlib.lines import Line2D

    held = [Line2D([], [], color=c, lw=2, label=w) for c, w in ((BLUE, "read"), (ORANGE, "write"))]
    axes.figure.legend(handles=held, loc="outside lower center", ncols=2, frameon=False)
