"""The look of every figure: colours, hatches, lines, and an empty figure to draw on.

Colours are Okabe and Ito's, told apart with any kind of colour vision; markers and hatches say the
same again. The background is white in every theme.
"""

from typing import TYPE_CHECKING, Any

from helpers.engine.errors import need

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# a figure, the table of its numbers, and a sentence that reads it or stands for it
Picture = tuple["Figure", "pd.DataFrame", str]
Look = tuple[str, str]  # colour and hatch

# Okabe and Ito 2008, Color universal design
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#000000"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
LINES = ("-", "--", "-.", ":", "-", "--", "-.")
INK = "#222222"

# of the training state
STATE_LOOKS: dict[str, Look] = {
    "parameters": (BLUE, "//"),
    "gradients": (ORANGE, ".."),
    "optimizer": (GREEN, "xx"),
}

STYLE = {
    "font.size": 10.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
}
WIDTH = 7.2  # inches; 576 pixels in the page
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))


def new_figure(
    height: float = 3.6, grid: str | None = "y", panels: int = 1
) -> "tuple[Figure, Axes | Any]":
    """An empty figure in the workshop's style, apart from pyplot's global state.

    Args:
        height: in inches; the width is that of a notebook's page.
        grid: lines across the axis `x` or `y`, or none.
        panels: side by side on one y axis; more than one are returned as an array of axes.
    """
    matplotlib = need("matplotlib", "notebooks")
    from matplotlib.figure import Figure

    lines = {"axes.grid": grid is not None, "axes.grid.axis": grid or "both"}
    with matplotlib.rc_context({**STYLE, **lines}):
        fig = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
        return fig, fig.subplots(1, panels, sharey=True)


def series_look(index: int) -> dict[str, str]:
    """Colour, line and marker of the first, second, ... line of a plot."""
    place = index % len(COLOURS)
    return {"color": COLOURS[place], "linestyle": LINES[place], "marker": MARKERS[place]}


def part_look(index: int) -> Look:
    """Colour and hatch of the first, second, ... part of a bar."""
    return COLOURS[index % len(COLOURS)], HATCHES[index % len(HATCHES)]


def title(axes: "Axes", text: str, plain_numbers: bool = False) -> None:
    """A title above the axes' left end.

    Args:
        plain_numbers: write numbers below the axes in full, neither as 1e6 nor with an offset.
    """
    axes.set_title(text, loc="left", fontsize=11.5)
    if plain_numbers:
        axes.xaxis.set_major_formatter("{x:,.10g}")


def unit_of(largest_bytes: float) -> tuple[str, float]:
    """The unit in which so many bytes are written, and its bytes."""
    return next((unit, size) for unit, size in UNITS if largest_bytes >= size)
