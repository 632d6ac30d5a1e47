"""The drawn idea of LoRA and QLoRA: what training holds for one matrix of the model.

fig, table, alt = draw_adapters()
"""

from helpers.lab.figures.drawing import WHOLE, box, key, name_columns, name_rows
from helpers.lab.figures.style import STATE_LOOKS, Picture, new_figure
from helpers.lab.figures.tables import in_words, table_of

FROZEN = WHOLE
TRAINED, GRADIENT, MOMENTS = STATE_LOOKS.values()
STATES = {
    "weights": TRAINED,
    "gradient": GRADIENT,
    "first moment": MOMENTS,
    "second moment": MOMENTS,
}
KEY = {"frozen": FROZEN, "trained": TRAINED, "gradient": GRADIENT, "moments": MOMENTS}
# method: bytes of a number of the matrix by state, and whether adapters stand beside it
HELD = {
    "full": ((4, 4, 4, 4), False),
    "LoRA": ((4, 0, 0, 0), True),
    "QLoRA": ((0.5, 0, 0, 0), True),
}
WHOLE_BYTES = 4
SIDE, THIN = 0.62, 0.05  # of a square of 4 bytes a number, and of an adapter


def draw_adapters() -> Picture:
    """A row a method; a box's height is the bytes of a number, grey is frozen."""
    fig, axes = new_figure(3.9, grid=None)
    rows = {}
    for row, (name, (sizes, adapters)) in enumerate(HELD.items()):
        for column, (size, look) in enumerate(zip(sizes, STATES.values())):
            if size:
                height = SIDE * size / WHOLE_BYTES
                box(axes, (column, -row), SIDE, height, FROZEN if adapters else look, line=0.7)
            if not adapters:
                continue
            for place in (column + SIDE + 0.05, column + SIDE + THIN + 0.08):
                box(axes, (place, -row), THIN, SIDE, look, line=0.7)
        rows[name] = dict(zip(STATES, map(_bytes, sizes)))
        rows[name]["adapters A, B"] = "16 bytes" if adapters else "none"
    axes.set(xlim=(-0.1, len(STATES)), ylim=(-len(HELD) + 0.85, SIDE + 0.1))
    name_columns(axes, {i + SIDE / 2: name for i, name in enumerate(STATES)}, top=True)
    name_rows(axes, {SIDE / 2 - i: name for i, name in enumerate(HELD)})
    key(fig, KEY)
    table = table_of(rows, "a number of the matrix")
    return fig, table, f"Bytes that training holds for a number of a matrix. {in_words(table)}"


def _bytes(size: float) -> str:
    return f"{size:g} byte{'s' if size > 1 else ''}" if size else "none"
