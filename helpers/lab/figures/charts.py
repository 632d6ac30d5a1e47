"""Bars and lines of a table: a row of it is a bar or a place, a column a part or a line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from helpers.lab.figures.drawing import key, legend_below
from helpers.lab.figures.style import Look, part_look, series_look

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def stacked_bars(
    axes: "Axes",
    table: "pd.DataFrame",
    looks: Sequence[Look] | None = None,
    hollow: Sequence[bool] | None = None,
    total: str = "{:,.3g}",
) -> None:
    """A bar per row: its columns end to end, and their sum behind it.

    Args:
        looks: colour and hatch of each column; the palette's in their order unless told.
        hollow: rows that are drawn in coloured lines alone, such as what was only predicted.
        total: how the sum is written.
    """
    looks = looks or [part_look(i) for i in range(table.shape[1])]
    hollow = hollow or [False] * len(table)
    rows, left = range(len(table)), [0.0] * len(table)
    for column, (colour, hatch) in zip(table, looks):
        inside = ["white" if empty else colour for empty in hollow]
        lines = [colour if empty else "white" for empty in hollow]
        look = {"color": inside, "edgecolor": lines, "hatch": hatch}
        axes.barh(rows, table[column], left=left, height=0.62, **look)
        left = [start + length for start, length in zip(left, table[column])]
    name_bars(axes, list(table.index))
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    longest = max(left) or 1.0  # an axis has two ends where all bars are of nothing, too
    for row, end in enumerate(left):
        place = end + 0.012 * longest
        axes.text(place, row, total.format(end), va="center", size=9.5, bbox=behind)
    axes.set_xlim(0, 1.15 * longest)
    key(axes.figure, dict(zip(table, looks)))


def paired_bars(axes: "Axes", table: "pd.DataFrame") -> None:
    """Two bars per row, one a column, each with its value behind it."""
    largest = table.max().max() or 1.0
    for i, (column, shift) in enumerate(zip(table, (-0.19, 0.19), strict=True)):
        rows = [row + shift for row in range(len(table))]
        colour, hatch = part_look(i)
        look = {"color": colour, "hatch": hatch, "edgecolor": "white"}
        axes.barh(rows, table[column], height=0.36, label=column, **look)
        for row, value in zip(rows, table[column]):
            axes.text(value + 0.01 * largest, row, f"{value:,.4g}", va="center", size=9)
    name_bars(axes, list(table.index))
    axes.set_xlim(0, 1.15 * largest)
    legend_below(axes.figure, ncols=2)


def lines(axes: "Axes", table: "pd.DataFrame", **style: Any) -> None:
    """A line a column against the table's index; a column's gaps are left out."""
    for i, name in enumerate(table):
        values = table[name].dropna()
        axes.plot(values.index, values, label=name, **{**series_look(i), **style})


def powers_of_two(axes: "Axes", places: list[int], rotation: int = 0) -> None:
    """A logarithmic axis below the plot, with these numbers alone on it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{place:,}" for place in places], rotation=rotation)
    axes.minorticks_off()


def name_bars(axes: "Axes", names: list[str]) -> None:
    """The bars' names, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
