"""The drawn idea of sharded data parallelism: what each of four ranks holds.

fig, table, alt = draw_shards()
"""

from typing import TYPE_CHECKING

from helpers.lab.figures.drawing import fill, key, name_columns, name_rows, outline
from helpers.lab.figures.style import STATE_LOOKS, Look, Picture, new_figure
from helpers.lab.figures.tables import in_words, table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = 4
ELSEWHERE: Look = ("#ececec", "")  # what other ranks hold of a state
# rung: over how many ranks parameters, gradients and optimizer are cut
CUTS = {
    "DDP": (1, 1, 1),
    "ZeRO-1": (1, 1, 4),
    "ZeRO-2": (1, 4, 4),
    "ZeRO-3": (4, 4, 4),
    "HSDP 2 × 2": (2, 2, 2),
}


def draw_shards() -> Picture:
    """A row per rung, a cell per rank; in a cell a bar per state, its held part filled."""
    fig, axes = new_figure(4.6, grid=None)
    for row, cuts in enumerate(CUTS.values()):
        for rank in range(RANKS):
            for place, (cut, look) in enumerate(zip(cuts, STATE_LOOKS.values())):
                _bar(axes, rank + 0.08, -row - 0.28 - 0.22 * place, cut, rank, look)
    axes.set(xlim=(0, RANKS), ylim=(-len(CUTS) - 0.05, 0.1))
    name_columns(axes, {rank + 0.5: f"rank {rank}" for rank in range(RANKS)}, top=True)
    name_rows(axes, {-row - 0.4: name for row, name in enumerate(CUTS)})
    key(fig, STATE_LOOKS)
    rows = {
        name: dict(zip(STATE_LOOKS, (f"1/{cut}" if cut > 1 else "all" for cut in cuts)))
        for name, cuts in CUTS.items()
    }
    table = table_of(rows, "a rank of 4 holds")
    alt = "What each of four ranks holds of parameters, gradients and optimizer state."
    return fig, table, f"{alt} {in_words(table)}"


def _bar(axes: "Axes", x: float, y: float, cut: int, rank: int, look: Look) -> None:
    """A state's whole in grey, and this rank's part of it filled."""
    width, height = 0.84, 0.17
    part = width / cut
    fill(axes, (x, y), width, height, ELSEWHERE)
    fill(axes, (x + part * (rank % cut), y), part, height, look)
    outline(axes, (x, y), width, height, line=0.7)
