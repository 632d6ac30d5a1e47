"""The drawn ideas: what each axis cuts, and one block of a model on two ranks.

Each function returns the figure, a table that says the same, and the alternative text.

    fig, table, alt = draw_tensor_parallel()
    show_figure(fig, alt, table=table)
"""

from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.figures.training_plots import BLUE, ORANGE, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = tuple["Figure", "pd.DataFrame", str]

WHOLE = "#d9d9d9"  # every rank has all of it
INK = "#222222"
RANKS = ((BLUE, ""), (ORANGE, "///"))  # colour and hatch of rank 0 and rank 1
MATH = ("x", "y")  # set as in a formula

# axis, what it is called, and how it cuts the tokens, the arithmetic and what is stored
AXES = (
    ("dp_replicate", "data parallel", "rows", "", ""),
    ("dp_shard", "sharded data parallel", "rows", "", "each"),
    ("cp", "context parallel", "columns", "", ""),
    ("tp", "tensor parallel", "", "columns", "columns"),
    ("pp", "pipeline parallel", "", "rows", "rows"),
)
WORDS = {
    ("tokens", "rows"): "samples are cut",
    ("tokens", "columns"): "each sequence is cut",
    ("tokens", ""): "both ranks work on all tokens",
    ("model", "rows"): "layers are cut",
    ("model", "columns"): "every layer is cut by width",
    ("model", "each"): "every layer's state is cut, and gathered for use",
    ("model", ""): "both ranks have the whole model",
}
SENDS = {
    "dp_replicate": "gradients, once a step",
    "dp_shard": "each layer's weights and gradients",
    "cp": "keys and values, in every layer",
    "tp": "activations, in every layer",
    "pp": "activations, between two stages",
}


def draw_map_of_parallelism() -> Drawing:
    """What each axis cuts, over two ranks: the tokens, the arithmetic, the stored state."""
    pandas = need("pandas", "notebooks")
    fig, axes = _canvas(14.4, 8.7)
    rows = (
        ("the tokens\nof a step", 5.5),
        ("the layers\nit computes", 3.0),
        ("the state\nit stores", 0.5),
    )
    for label, y in rows:
        axes.text(1.75, y + 0.95, label, ha="right", va="center", color=INK)
    for i, (axis, name, *cuts) in enumerate(AXES):
        x = 2.1 + 2.45 * i
        title = name.replace(" parallel", "\nparallel")
        axes.text(x + 1, 8.7, axis, ha="center", va="top", weight="bold", color=INK)
        axes.text(x + 1, 8.3, title, ha="center", va="top", size=9, color=INK)
        for (_, y), cut, kind in zip(rows, cuts, ("tokens", "model", "model")):
            _cut(axes, x, y, 2.0, 1.9, cut, bands=4 if kind == "model" else 0)
    _key(axes)
    table = pandas.DataFrame(
        {
            "cuts the tokens": [WORDS["tokens", tokens] for _, _, tokens, _, _ in AXES],
            "cuts the model": [WORDS["model", stored] for _, _, _, _, stored in AXES],
            "what is sent": [SENDS[axis] for axis, *_ in AXES],
        },
        index=pandas.Index([axis for axis, *_ in AXES], name="axis"),
    )
    return fig, table, _map_in_words()


def draw_tensor_parallel() -> Drawing:
    """One block over two ranks: column split, row split, one all-reduce; f and g around them."""
    pandas = need("pandas", "notebooks")
    fig, axes = _canvas(14.4, 7.0)
    for rank, y in enumerate((4.9, 2.1)):
        colour, hatch = RANKS[rank]
        axes.text(0.1, y, f"rank {rank}", va="center", weight="bold", color=INK)
        _box(axes, 1.5, y - 0.7, 0.9, 1.4, WHOLE, label="x")
        _part(axes, 4.1, y - 0.8, 1.9, 1.6, "columns", rank, "A")
        _box(axes, 6.7, y - 0.7, 0.55, 1.4, colour, hatch)
        axes.text(6.97, y + 0.85, "activation", ha="center", va="bottom", size=9, color=INK)
        _part(axes, 7.95, y - 0.8, 1.6, 1.6, "rows", rank, "B")
        _box(axes, 10.25, y - 0.7, 0.9, 1.4, colour, hatch, label=f"y{'₀₁'[rank]}")
        _box(axes, 13.2, y - 0.7, 0.9, 1.4, WHOLE, label="y")
        for start, end in ((2.4, 4.1), (6.0, 6.7), (7.25, 7.95), (9.55, 10.25), (11.15, 13.2)):
            _arrow(axes, start, end, y)
    for x, letter in ((3.2, "f"), (12.2, "g")):
        _box(axes, x - 0.27, 1.1, 0.54, 4.8, "white", label=letter, size=15)
    axes.text(5.05, 6.05, "cut by columns", ha="center", va="bottom", color=INK)
    axes.text(8.75, 6.05, "cut by rows", ha="center", va="bottom", color=INK)
    axes.text(12.2, 6.05, "y₀ + y₁", ha="center", va="bottom", color=INK)
    notes = (
        (0.55, "f", "forward: nothing is sent", "backward: all-reduce of the gradient of x"),
        (0.1, "g", "forward: all-reduce of y₀ and y₁", "backward: nothing is sent"),
    )
    for y, letter, forward, backward in notes:
        axes.text(2.0, y, letter, weight="bold", color=INK, va="center", size=12)
        axes.text(2.6, y, forward, color=INK, va="center")
        axes.text(7.95, y, backward, color=INK, va="center")
    table = pandas.DataFrame(
        {
            "rank 0": ["x", "left half of A", "upper half of B", "y₀", "y"],
            "rank 1": ["x", "right half of A", "lower half of B", "y₁", "y"],
            "sent forward": ["–", "–", "–", "–", "all-reduce of y₀ and y₁ (g)"],
            "sent backward": ["all-reduce of its gradient (f)", "–", "–", "–", "–"],
        },
        index=pandas.Index(
            ["input", "columns of A", "rows of B", "partial sum", "output"], name="held"
        ),
    )
    alt = (
        "One block of a model on two ranks. Both hold the input x. Rank 0 has the left half of the "
        "columns of matrix A and the upper half of the rows of matrix B, rank 1 the other halves. "
        "Each computes a partial sum, y₀ or y₁; the operator g adds them by an all-reduce, so both "
        "hold the output y. Backward, the operator f before A all-reduces the gradient of x."
    )
    return fig, table, alt


def _map_in_words() -> str:
    parts = [
        f"{axis} ({title}): {WORDS['tokens', tokens]}, {WORDS['model', stored]}"
        for axis, title, tokens, _, stored in AXES
    ]
    return "What each axis of parallelism cuts over two ranks. " + "; ".join(parts) + "."


def _canvas(width: float, height: float) -> tuple["Figure", "Axes"]:
    """An empty drawing of width x height units, 0.5 inch each."""
    fig, axes = new_figure(height / 2, grid=None)
    axes.set(xlim=(0, width), ylim=(-0.2, height), aspect="equal")
    axes.axis("off")
    return fig, axes


def _cut(axes: "Axes", x: float, y: float, w: float, h: float, cut: str, bands: int) -> None:
    """A rectangle cut over both ranks by `rows`, `columns`, or in `each` of its bands; or whole."""
    n = bands or 1
    if cut == "rows":
        _box(axes, x, y + h / 2, w, h / 2, *RANKS[0])
        _box(axes, x, y, w, h / 2, *RANKS[1])
    elif cut == "columns":
        _box(axes, x, y, w / 2, h, *RANKS[0])
        _box(axes, x + w / 2, y, w / 2, h, *RANKS[1])
    elif cut == "each":
        for band in range(n):
            base, half = y + h * band / n, h / n / 2
            _box(axes, x, base + half, w, half, *RANKS[0])
            _box(axes, x, base, w, half, *RANKS[1])
    else:
        _box(axes, x, y, w, h, WHOLE)
    for band in range(1, n):
        level = y + h * band / n
        axes.plot([x, x + w], [level, level], color=INK, linewidth=1.4)


def _part(
    axes: "Axes", x: float, y: float, w: float, h: float, cut: str, rank: int, label: str
) -> None:
    """A matrix of which this rank holds one half; the other half is only outlined."""
    colour, hatch = RANKS[rank]
    _box(axes, x, y, w, h, "white", line=":")
    if cut == "columns":
        x, w = x + rank * w / 2, w / 2
    else:
        y, h = y + (1 - rank) * h / 2, h / 2
    _box(axes, x, y, w, h, colour, hatch, label=f"{label}{'₀₁'[rank]}")


def _box(
    axes: "Axes",
    x: float,
    y: float,
    w: float,
    h: float,
    colour: str,
    hatch: str = "",
    label: str = "",
    size: float = 10.5,
    line: str = "-",
) -> None:
    from matplotlib.patches import Rectangle

    edge = "white" if hatch else INK
    axes.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor=edge, hatch=hatch, lw=0))
    axes.add_patch(Rectangle((x, y), w, h, fill=False, edgecolor=INK, lw=1, linestyle=line))
    if not label:
        return
    background = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    style = "italic" if label in MATH else "normal"
    coloured = colour not in ("white", WHOLE)
    axes.text(
        x + w / 2,
        y + h / 2,
        label,
        ha="center",
        va="center",
        size=size,
        style=style,
        color=INK,
        bbox=background if coloured else None,
    )


def _arrow(axes: "Axes", start: float, end: float, y: float) -> None:
    arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", (end, y), (start, y), arrowprops=arrow, zorder=0)


def _key(axes: "Axes") -> None:
    """What the colours mean."""
    for x, colour, hatch, words in (
        (2.1, *RANKS[0], "rank 0"),
        (4.6, *RANKS[1], "rank 1"),
        (7.1, WHOLE, "", "whole on both ranks"),
    ):
        _box(axes, x, -0.15, 0.5, 0.35, colour, hatch)
        axes.text(x + 0.65, 0.02, words, va="center", color=INK, size=9.5)
