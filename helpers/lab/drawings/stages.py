"""Which parts of a model are on which stage, as a picture: a column a stage, a box a part.

fig, table, alt = draw_partition({"two stages": (("embedding", 0, 1), (2, 3, "head"))}, costs)
show_figure(fig, alt, table=table)
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.engine.pipeline.partition import SPEED, Costs, layer_ranges
from helpers.lab.figures.training_plots import BLUE, ORANGE, VERMILLION, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = tuple["Figure", "pd.DataFrame", str]
Part = int | str  # a layer's number, EMBEDDING or HEAD
Stages = Sequence[Sequence[Part]]

EMBEDDING, HEAD = "embedding", "head"
INK = "#222222"
# what is no layer: colour, hatch
ENDS = {EMBEDDING: (ORANGE, "///"), HEAD: (VERMILLION, "\\\\\\")}
HIGH = 0.55  # inches of a layer
GAP = 0.55  # layers


def stages_of(counts: Sequence[int]) -> list[list[Part]]:
    """The parts of each stage where layers follow each other and the ends are at the ends."""
    stages: list[list[Part]] = [list(layers) for layers in layer_ranges(counts)]
    stages[0].insert(0, EMBEDDING)
    stages[-1].append(HEAD)
    return stages


def draw_partition(
    partitions: Mapping[str, Stages], costs: Costs, memory_weight: float = SPEED
) -> Drawing:
    """Partitions of one model, one above the other; a box is as high as its part costs.

    Args:
        partitions: by name, the parts of each stage.
        costs: of the parts; drawn in units of the first layer.
        memory_weight: as in engine.partition.

    Returns:
        The figure; a table by partition; alternative text.

    Raises:
        UserError: a partition leaves a part out or has it twice.
    """
    pandas = need("pandas", "notebooks")
    names = [EMBEDDING, *range(len(costs.layers)), HEAD]
    shares = costs.shares(memory_weight)
    units = {name: float(share / shares[1]) for name, share in zip(names, shares)}
    for title, stages in partitions.items():
        if sorted(map(str, (part for stage in stages for part in stage))) != sorted(
            map(str, names)
        ):
            raise UserError(f"the partition {title!r} does not have each part of the model once")
    loads = {
        title: [sum(units[part] for part in stage) for stage in stages]
        for title, stages in partitions.items()
    }
    fig = _picture(partitions, loads, units)
    even = sum(units.values())
    table = pandas.DataFrame(
        {
            "stages": [len(stages) for stages in partitions.values()],
            "without layers": [
                sum(not any(isinstance(p, int) for p in stage) for stage in stages)
                for stages in partitions.values()
            ],
            "largest stage, in layers": [max(found) for found in loads.values()],
            "if all were equal": [even / len(found) for found in loads.values()],
        },
        index=pandas.Index(list(partitions), name="partition"),
    )
    return fig, table, _in_words(partitions)


def _picture(
    partitions: Mapping[str, Stages],
    loads: Mapping[str, Sequence[float]],
    units: Mapping[Part, float],
) -> "Figure":
    tall = sum(max(found) + GAP for found in loads.values())
    wide = max(len(stages) for stages in partitions.values())
    fig, axes = new_figure(0.7 + HIGH * tall, grid=None)
    top = tall
    for title, stages in partitions.items():
        top -= max(loads[title]) + GAP
        axes.text(0, top + max(loads[title]) + 0.06, title, weight="bold", color=INK, va="bottom")
        axes.plot([0, len(stages)], [top, top], color=INK, linewidth=1)
        for place, stage in enumerate(stages):
            level = top
            for part in stage:
                _box(axes, place, level, units[part], part)
                level += units[part]
    axes.set(xlim=(0, wide), ylim=(0, tall), xlabel="stage")
    axes.set_xticks([place + 0.5 for place in range(wide)], range(wide))
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    _key(fig)
    return fig


def _box(axes: "Axes", place: int, level: float, height: float, part: Part) -> None:
    from matplotlib.patches import Rectangle

    colour, hatch = ENDS.get(part, (BLUE, ""))
    corner, width = (place + 0.06, level), 0.88
    axes.add_patch(
        Rectangle(corner, width, height, facecolor=colour, edgecolor="white", hatch=hatch, lw=0)
    )
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="white", lw=1.2))
    if part not in ENDS:
        middle = {"ha": "center", "va": "center", "color": "white", "size": 9}
        axes.text(place + 0.5, level + height / 2, str(part), **middle)


def _key(fig: "Figure") -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=BLUE, label="a layer, by its number")]
    patches += [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name)
        for name, (colour, hatch) in ENDS.items()
    ]
    fig.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)


def _in_words(partitions: Mapping[str, Stages]) -> str:
    """Every stage of every partition."""
    parts = []
    for title, stages in partitions.items():
        held = "; ".join(
            f"stage {place}: {', '.join(map(_name, stage)) or 'nothing'}"
            for place, stage in enumerate(stages)
        )
        parts.append(f"{title}, {held}")
    return f"A column a stage, with the parts of the model on it. {'. '.join(parts)}."


def _name(part: Part) -> str:
    return f"layer {part}" if isinstance(part, int) else part
