"""The drawn idea of parallelism: what each axis of a plan cuts over two ranks.

fig, table, alt = draw_map_of_parallelism()
show_figure(fig, alt, table=table)
"""

from typing import TYPE_CHECKING, NamedTuple

from helpers.lab.figures.drawing import RANK_LOOKS, WHOLE, Point, box, canvas, words_at
from helpers.lab.figures.style import INK, Picture
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Axis(NamedTuple):
    """What an axis cuts: samples and layers are `rows`, the length of a sequence and the width of
    a layer `columns`; `each` is every layer on its own, and an empty string is not cut."""

    name: str
    title: str
    tokens: str
    arithmetic: str
    state: str
    sends: str


AXES = (
    Axis("dp_replicate", "data parallel", "rows", "", "", "gradients, once a step"),
    Axis(
        name="dp_shard",
        title="sharded data parallel",
        tokens="rows",
        arithmetic="",
        state="each",
        sends="each layer's weights and gradients",
    ),
    Axis(
        name="cp",
        title="context parallel",
        tokens="columns",
        arithmetic="",
        state="each",
        sends="keys and values in every layer, and each layer's weights and gradients",
    ),
    Axis("tp", "tensor parallel", "", "columns", "columns", "activations, in every layer"),
    Axis("pp", "pipeline parallel", "", "rows", "rows", "activations, between two stages"),
)
TOKENS_IN_WORDS = {
    "rows": "samples are cut",
    "columns": "each sequence is cut",
    "": "both ranks work on all tokens",
}
MODEL_IN_WORDS = {
    "rows": "layers are cut",
    "columns": "every layer is cut by width",
    "each": "every layer's state is cut, and gathered for use",
    "": "both ranks have the whole model",
}
LAYERS = 4
# of a cut rectangle: how high it stands, what it is called, its layers
BANDS = {
    "tokens": (5.5, "the tokens\nof a step", 1),
    "arithmetic": (3.0, "the layers\nit computes", LAYERS),
    "state": (0.5, "the state\nit stores", LAYERS),
}
WIDTH, HEIGHT = 2.0, 1.9  # of a cut rectangle


def draw_map_of_parallelism() -> Picture:
    """What each axis cuts, over two ranks: the tokens, the arithmetic, the stored state."""
    fig, axes = canvas(14.4, 8.7)
    for y, words, _ in BANDS.values():
        words_at(axes, (1.75, y + HEIGHT / 2), words, ha="right")
    for place, axis in enumerate(AXES):
        x = 2.1 + 2.45 * place
        middle = x + WIDTH / 2
        words_at(axes, (middle, 8.7), axis.name, va="top", weight="bold")
        heading = axis.title.replace(" parallel", "\nparallel")
        words_at(axes, (middle, 8.3), heading, va="top", size=9)
        for band, (y, _, layers) in BANDS.items():
            _cut_rectangle(axes, (x, y), getattr(axis, band), layers)
    _key(axes)
    rows = {
        axis.name: {
            "cuts the tokens": TOKENS_IN_WORDS[axis.tokens],
            "cuts the model": MODEL_IN_WORDS[axis.state],
            "what is sent": axis.sends,
        }
        for axis in AXES
    }
    parts = [
        f"{axis.name} ({axis.title}): {TOKENS_IN_WORDS[axis.tokens]}, {MODEL_IN_WORDS[axis.state]}"
        for axis in AXES
    ]
    alt = f"What each axis of parallelism cuts over two ranks. {'; '.join(parts)}."
    return fig, table_of(rows, "axis"), alt


def _cut_rectangle(axes: "Axes", corner: Point, cut: str, layers: int) -> None:
    """A rectangle of several layers, cut over both ranks or whole."""
    x, y = corner
    first, second = RANK_LOOKS
    if cut == "columns":
        box(axes, (x, y), WIDTH / 2, HEIGHT, first)
        box(axes, (x + WIDTH / 2, y), WIDTH / 2, HEIGHT, second)
    elif cut:
        pieces = layers if cut == "each" else 1
        half = HEIGHT / pieces / 2
        for piece in range(pieces):
            base = y + 2 * half * piece
            box(axes, (x, base + half), WIDTH, half, first)
            box(axes, (x, base), WIDTH, half, second)
    else:
        box(axes, (x, y), WIDTH, HEIGHT, WHOLE)
    for layer in range(1, layers):
        level = y + HEIGHT * layer / layers
        axes.plot([x, x + WIDTH], [level, level], color=INK, linewidth=1.4)


def _key(axes: "Axes") -> None:
    """What the colours mean."""
    looks = {"rank 0": RANK_LOOKS[0], "rank 1": RANK_LOOKS[1], "whole on both ranks": WHOLE}
    for place, (words, look) in enumerate(looks.items()):
        x = 2.1 + 2.5 * place
        box(axes, (x, -0.15), 0.5, 0.35, look)
        words_at(axes, (x + 0.65, 0.02), words, ha="left", size=9.5)
