"""The drawn idea of LoRA and QLoRA: what training holds for one matrix of the model.

fig, table, alt = draw_adapters()
"""

from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.drawings.parallelism_map import INK, WHOLE, Drawing
from helpers.lab.figures.training_plots import BLUE, GREEN, HATCHES, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATES = ("weights", "gradient", "first moment", "second moment")
LOOKS = (
    (BLUE, HATCHES[1]),
    (ORANGE, HATCHES[2]),
    (GREEN, HATCHES[3]),
    (GREEN, HATCHES[3]),
)
FROZEN = WHOLE
# method: bytes of a number of the matrix by state, and whether adapters stand beside it
HELD = {
    "full": ((4, 4, 4, 4), False),
    "LoRA": ((4, 0, 0, 0), True),
    "QLoRA": ((0.5, 0, 0, 0), True),
}
WHOLE_BYTES = 4
SIDE, THIN = 0.62, 0.05  # of a square of 4 bytes a number, and of an adapter


def draw_adapters() -> Drawing:
    """A row a method; a box's height is the bytes of a number, grey is frozen."""
    pandas = need("pandas", "notebooks")
    fig, axes = new_figure(3.9, grid=None)
    rows = {}
    for row, (name, (held, beside)) in enumerate(HELD.items()):
        for column, size in enumerate(held):
            look = LOOKS[column] if not beside else (FROZEN, "")
            _box(axes, column, -row, SIDE, SIDE * size / WHOLE_BYTES, look)
            if beside:
                for side in (0, 1):
                    x = column + SIDE + 0.05 + side * (THIN + 0.03)
                    _box(axes, x, -row, THIN, SIDE, LOOKS[column])
        words = [_bytes(size) for size in held]
        rows[name] = dict(zip(STATES, words)) | {"adapters A, B": "16 bytes" if beside else "none"}
    axes.set(xlim=(-0.1, len(STATES)), ylim=(-len(HELD) + 0.85, SIDE + 0.1))
    axes.set_xticks([column + SIDE / 2 for column in range(len(STATES))], STATES)
    axes.xaxis.tick_top()
    axes.set_yticks([SIDE / 2 - row for row in range(len(HELD))], list(HELD))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _key(axes)
    table = pandas.DataFrame.from_dict(rows, orient="index")
    alt = "Bytes that training holds for a number of a matrix. " + " ".join(
        f"{name}: {', '.join(f'{what} {words}' for what, words in found.items())}."
        for name, found in rows.items()
    )
    return fig, table.rename_axis("a number of the matrix"), alt


def _bytes(size: float) -> str:
    return f"{size:g} byte{'s' if size > 1 else ''}" if size else "none"


def _box(
    axes: "Axes", x: float, y: float, width: float, height: float, look: tuple[str, str]
) -> None:
    from matplotlib.patches import Rectangle

    if not height:
        return
    colour, hatch = look
    axes.add_patch(Rectangle((x, y), width, height, fc=colour, ec="white", hatch=hatch, lw=0))
    axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=INK, lw=0.7))


def _key(axes: "Axes") -> None:
    from matplotlib.patches import Patch

    looks = {"frozen": (FROZEN, ""), "trained": LOOKS[0], "gradient": LOOKS[1], "moments": LOOKS[2]}
    held = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name)
        for name, (colour, hatch) in looks.items()
    ]
    axes.figure.legend(handles=held, loc="outside lower center", ncols=4, frameon=False)
