"""The drawn idea of tensor parallelism: one block of a model on two ranks.

fig, table, alt = draw_tensor_parallel()
show_figure(fig, alt, table=table)
"""

from typing import TYPE_CHECKING

from helpers.lab.figures.drawing import (
    RANK_LOOKS,
    WHITE,
    WHOLE,
    Point,
    arrow,
    box,
    canvas,
    outline,
    words_at,
)
from helpers.lab.figures.style import Picture
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORWARD_ARROWS = ((2.4, 4.1), (6.0, 6.7), (7.25, 7.95), (9.55, 10.25), (11.15, 13.2))
OPERATORS = {"f": 3.2, "g": 12.2}  # and where they stand
CAPTIONS = {"cut by columns": 5.05, "cut by rows": 8.75, "y₀ + y₁": 12.2}
# operator: what it sends forward, and backward
SENDS = {
    "f": ("forward: nothing is sent", "backward: all-reduce of the gradient of x"),
    "g": ("forward: all-reduce of y₀ and y₁", "backward: nothing is sent"),
}
# held: by rank 0, by rank 1; sent forward and backward
ROWS = {
    "input": ("x", "x", "–", "all-reduce of its gradient (f)"),
    "columns of A": ("left half of A", "right half of A", "–", "–"),
    "rows of B": ("upper half of B", "lower half of B", "–", "–"),
    "partial sum": ("y₀", "y₁", "–", "–"),
    "output": ("y", "y", "all-reduce of y₀ and y₁ (g)", "–"),
}
ALT = (
    "One block of a model on two ranks. Both hold the input x. Rank 0 has the left half of the "
    "columns of matrix A and the upper half of the rows of matrix B, rank 1 the other halves. "
    "Each computes a partial sum, y₀ or y₁; the operator g adds them by an all-reduce, so both "
    "hold the output y. Backward, the operator f before A all-reduces the gradient of x."
)


def draw_tensor_parallel() -> Picture:
    """One block over two ranks: column split, row split, one all-reduce; f and g around them."""
    fig, axes = canvas(14.4, 7.0)
    for rank, y in enumerate((4.9, 2.1)):
        _rank(axes, rank, y)
    for letter, x in OPERATORS.items():
        box(axes, (x - 0.27, 1.1), 0.54, 4.8, WHITE)
        words_at(axes, (x, 3.5), letter, size=15)
    for words, x in CAPTIONS.items():
        words_at(axes, (x, 6.05), words, va="bottom")
    for y, (letter, (forward, backward)) in zip((0.55, 0.1), SENDS.items()):
        words_at(axes, (2.0, y), letter, ha="left", weight="bold", size=12)
        words_at(axes, (2.6, y), forward, ha="left")
        words_at(axes, (7.95, y), backward, ha="left")
    columns = ("rank 0", "rank 1", "sent forward", "sent backward")
    table = table_of({name: dict(zip(columns, cells)) for name, cells in ROWS.items()}, "held")
    return fig, table, ALT


def _rank(axes: "Axes", rank: int, y: float) -> None:
    """What one rank has, from left to right, at the height `y`."""
    look, index = RANK_LOOKS[rank], "₀₁"[rank]
    words_at(axes, (0.1, y), f"rank {rank}", ha="left", weight="bold")
    for x, letter in ((1.5, "x"), (13.2, "y")):
        box(axes, (x, y - 0.7), 0.9, 1.4, WHOLE)
        words_at(axes, (x + 0.45, y), letter, style="italic")
    outline(axes, (4.1, y - 0.8), 1.9, 1.6, style=":")
    _part(axes, (4.1 + 0.95 * rank, y - 0.8), 0.95, 1.6, rank, f"A{index}")
    box(axes, (6.7, y - 0.7), 0.55, 1.4, look)
    words_at(axes, (6.97, y + 0.85), "activation", va="bottom", size=9)
    outline(axes, (7.95, y - 0.8), 1.6, 1.6, style=":")
    _part(axes, (7.95, y - 0.8 * rank), 1.6, 0.8, rank, f"B{index}")
    _part(axes, (10.25, y - 0.7), 0.9, 1.4, rank, f"y{index}")
    for start, end in FORWARD_ARROWS:
        arrow(axes, (start, y), (end, y))


def _part(axes: "Axes", corner: Point, width: float, height: float, rank: int, words: str) -> None:
    """A box that this rank has alone, with its name."""
    box(axes, corner, width, height, RANK_LOOKS[rank])
    centre = corner[0] + width / 2, corner[1] + height / 2
    words_at(axes, centre, words, label=True)
