"""What drawings are made of: boxes, arrows, words in their middle, names beside and a key below."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from helpers.lab.figures.style import BLUE, INK, ORANGE, Look, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHITE: Look = ("white", "")
WHOLE: Look = ("#d9d9d9", "")  # what every rank has all of
WAITING: Look = ("#dcdcdc", "")  # where nothing is done
RANK_LOOKS: tuple[Look, Look] = ((BLUE, ""), (ORANGE, "///"))  # of rank 0 and rank 1

HEADING = {"ha": "left", "va": "bottom", "weight": "bold"}  # words above what they name

Point = tuple[float, float]


def canvas(width: float, height: float) -> "tuple[Figure, Axes]":
    """An empty drawing of width x height units, 0.5 inch each."""
    fig, axes = new_figure(height / 2, grid=None)
    axes.set(xlim=(0, width), ylim=(-0.2, height), aspect="equal")
    axes.axis("off")
    return fig, axes


def fill(axes: "Axes", corner: Point, width: float, height: float, look: Look) -> None:
    """A rectangle from its lower left corner on, hatched in white, without an outline."""
    from matplotlib.patches import Rectangle

    colour, hatch = look
    style = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "lw": 0}
    axes.add_patch(Rectangle(corner, width, height, **style))


def outline(
    axes: "Axes",
    corner: Point,
    width: float,
    height: float,
    colour: str = INK,
    line: float = 1.0,
    style: str = "-",
) -> None:
    """An empty rectangle; its line is so many points wide, in one of matplotlib's styles."""
    from matplotlib.patches import Rectangle

    drawn = {"edgecolor": colour, "lw": line, "linestyle": style}
    axes.add_patch(Rectangle(corner, width, height, fill=False, **drawn))


def box(
    axes: "Axes",
    corner: Point,
    width: float,
    height: float,
    look: Look,
    edge: str = INK,
    line: float = 1.0,
) -> None:
    """A filled rectangle with its outline."""
    fill(axes, corner, width, height, look)
    outline(axes, corner, width, height, edge, line)


def words_at(axes: "Axes", centre: Point, words: str, label: bool = False, **font: Any) -> None:
    """Words centred on a point; as a `label` they stand on white, for a hatch below them."""
    background = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    font = {"ha": "center", "va": "center", "color": INK, **font}
    axes.text(*centre, words, bbox=background if label else None, **font)


def arrow(axes: "Axes", start: Point, end: Point, colour: str = INK, line: float = 1.0) -> None:
    """An arrow behind the boxes, its line so many points wide."""
    look = {"arrowstyle": "-|>", "color": colour, "lw": line, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=look, zorder=0)


def name_rows(axes: "Axes", names: Mapping[float, str]) -> None:
    """Names by height, in place of the vertical axis."""
    axes.set_yticks(list(names), list(names.values()))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def name_columns(axes: "Axes", names: Mapping[float, str], top: bool = False) -> None:
    """Names by place, in place of the horizontal axis; on `top` of the drawing or below it."""
    axes.set_xticks(list(names), list(names.values()))
    if top:
        axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.spines["bottom"].set_visible(False)


def key(
    fig: "Figure", looks: Mapping[str, Look], columns: int = 4, size: float | None = None
) -> None:
    """What the colours and hatches mean, below the figure.

    Args:
        size: of the words, in points; matplotlib's own unless told.
    """
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=words)
        for words, (colour, hatch) in looks.items()
    ]
    legend_below(fig, handles=patches, ncols=columns, fontsize=size)


def legend_below(fig: "Figure", **what: Any) -> None:
    """The legend of what was drawn with a label, below the figure."""
    fig.legend(loc="outside lower center", frameon=False, **what)
