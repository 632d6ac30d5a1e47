"""Which parts of a model are on which stage, as a picture: a column per stage, a box per part.

fig, table, alt = draw_partition({"two stages": (("embedding", 0, 1), (2, 3, "head"))}, costs)
show_figure(fig, alt, table=table)
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError
from helpers.engine.pipeline.partition import SPEED, Costs, layer_ranges
from helpers.lab.figures.drawing import HEADING, Point, box, key, name_columns, name_rows, words_at
from helpers.lab.figures.style import BLUE, INK, ORANGE, VERMILLION, Look, Picture, new_figure
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = int | str  # a layer's number, EMBEDDING or HEAD
Stages = Sequence[Sequence[Part]]

EMBEDDING, HEAD = "embedding", "head"
LAYER: Look = (BLUE, "")
ENDS: dict[Part, Look] = {EMBEDDING: (ORANGE, "///"), HEAD: (VERMILLION, "\\\\\\")}
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
) -> Picture:
    """Partitions of one model, one above the other; a box is as high as its part costs.

    Args:
        partitions: by name, the parts of each stage.
        costs: of the parts; drawn in units of the first layer.
        memory_weight: as in engine.pipeline.partition.

    Returns:
        The figure; a table by partition; alternative text.

    Raises:
        UserError: a partition leaves a part out or has it twice.
    """
    parts = [EMBEDDING, *range(len(costs.layers)), HEAD]
    shares = costs.shares(memory_weight)
    heights = {part: float(share / shares[1]) for part, share in zip(parts, shares)}
    for name, stages in partitions.items():
        placed = [part for stage in stages for part in stage]
        if sorted(map(str, placed)) != sorted(map(str, parts)):
            raise UserError(f"the partition {name!r} does not have each part of the model once")
    largest = {
        name: max(sum(heights[part] for part in stage) for stage in stages)
        for name, stages in partitions.items()
    }
    rows = {
        name: {
            "stages": len(stages),
            "without layers": sum(not any(isinstance(p, int) for p in stage) for stage in stages),
            "largest stage, in layers": largest[name],
            "if all were equal": sum(heights.values()) / len(stages),
        }
        for name, stages in partitions.items()
    }
    fig = _picture(partitions, heights, largest)
    return fig, table_of(rows, "partition"), _alt(partitions)


def _picture(
    partitions: Mapping[str, Stages], heights: Mapping[Part, float], largest: Mapping[str, float]
) -> "Figure":
    tall = sum(largest.values()) + GAP * len(partitions)
    wide = max(len(stages) for stages in partitions.values())
    fig, axes = new_figure(0.7 + HIGH * tall, grid=None)
    level = tall
    for name, stages in partitions.items():
        level -= largest[name] + GAP
        words_at(axes, (0, level + largest[name] + 0.06), name, **HEADING)
        axes.plot([0, len(stages)], [level, level], color=INK, linewidth=1)
        for place, stage in enumerate(stages):
            _stage(axes, (place + 0.06, level), stage, heights)
    axes.set(xlim=(0, wide), ylim=(0, tall), xlabel="stage")
    name_columns(axes, {place + 0.5: str(place) for place in range(wide)})
    name_rows(axes, {})
    key(fig, {"a layer, by its number": LAYER, **ENDS}, columns=3, size=8.5)
    return fig


def _stage(
    axes: "Axes", corner: Point, stage: Sequence[Part], heights: Mapping[Part, float]
) -> None:
    """The parts of a stage, one upon the other from `corner` on."""
    x, level = corner
    for part in stage:
        height = heights[part]
        box(axes, (x, level), 0.88, height, ENDS.get(part, LAYER), edge="white", line=1.2)
        if part not in ENDS:
            words_at(axes, (x + 0.44, level + height / 2), str(part), color="white", size=9)
        level += height


def _alt(partitions: Mapping[str, Stages]) -> str:
    """Every stage of every partition."""
    words = []
    for name, stages in partitions.items():
        contents = "; ".join(
            f"stage {place}: {', '.join(map(_name, stage)) or 'nothing'}"
            for place, stage in enumerate(stages)
        )
        words.append(f"{name}, {contents}")
    return f"A column per stage, with the parts of the model on it. {'. '.join(words)}."


def _name(part: Part) -> str:
    return f"layer {part}" if isinstance(part, int) else part
