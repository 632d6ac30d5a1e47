"""The drawn idea of sharded data parallelism: what each of four ranks holds.

fig, table, alt = draw_shards()
"""

from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.drawings.parallelism_map import INK, WHOLE, Drawing
from helpers.lab.figures.training_plots import BLUE, GREEN, HATCHES, ORANGE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = 4
STATES = ("parameters", "gradients", "optimizer")
LOOKS = ((BLUE, HATCHES[1]), (ORANGE, HATCHES[2]), (GREEN, HATCHES[3]))
# rung: by state, over how many ranks it is cut
CUTS = {
    "DDP": (1, 1, 1),
    "ZeRO-1": (1, 1, 4),
    "ZeRO-2": (1, 4, 4),
    "ZeRO-3": (4, 4, 4),
    "HSDP 2 × 2": (2, 2, 2),
}


def draw_shards() -> Drawing:
    """A row a rung, a cell a rank; in each cell a bar a state, of which the held part is filled."""
    pandas = need("pandas", "notebooks")
    fig, axes = new_figure(4.6, grid=None)
    for row, cuts in enumerate(CUTS.values()):
        for rank in range(RANKS):
            for state, cut in enumerate(cuts):
                _bar(axes, rank + 0.08, -row - 0.28 - 0.22 * state, cut, rank, LOOKS[state])
    axes.set(xlim=(0, RANKS), ylim=(-len(CUTS) - 0.05, 0.1))
    axes.set_xticks([rank + 0.5 for rank in range(RANKS)], [f"rank {r}" for r in range(RANKS)])
    axes.xaxis.tick_top()
    axes.set_yticks([-row - 0.4 for row in range(len(CUTS))], list(CUTS))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _key(axes)
    rows = {
        name: dict(zip(STATES, (f"1/{cut}" if cut > 1 else "all" for cut in cuts)))
        for name, cuts in CUTS.items()
    }
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("a rank of 4 holds")
    alt = "What each of four ranks holds of parameters, gradients and optimizer state. " + " ".join(
        f"{name}: {', '.join(f'{state} {part}' for state, part in held.items())}."
        for name, held in rows.items()
    )
    return fig, table, alt


def _bar(axes: "Axes", x: float, y: float, cut: int, rank: int, look: tuple[str, str]) -> None:
    """A state's whole outlined, and this rank's part of it filled."""
    from matplotlib.patches import Rectangle

    width, height = 0.84, 0.17
    colour, hatch = look
    start = x + width / cut * (rank % cut)
    held = Rectangle((start, y), width / cut, height, fc=colour, ec="white", hatch=hatch, lw=0)
    axes.add_patch(Rectangle((x, y), width, height, fc=WHOLE, ec="none", alpha=0.5))
    axes.add_patch(held)
    axes.add_patch(Rectangle((x, y), width, height, fill=False, ec=INK, lw=0.7))


def _key(axes: "Axes") -> None:
    from matplotlib.patches import Patch

    held = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=state)
        for state, (colour, hatch) in zip(STATES, LOOKS)
    ]
    axes.figure.legend(handles=held, loc="outside lower center", ncols=3, frameon=False)
