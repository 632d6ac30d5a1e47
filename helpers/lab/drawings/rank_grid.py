"""Which rank holds what on which node, as a picture.

fig, table, alt = draw_placement({"dp_shard": 2, "pp": 4, "tp": 2}, "cluster", per_node=8)
show_figure(fig, alt, table=table)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, check_count, need
from helpers.engine.pipeline.partition import layer_ranges
from helpers.engine.placement import axis_order
from helpers.lab.figures.drawing import HEADING, Point, fill, outline, words_at
from helpers.lab.figures.style import Look, Picture, new_figure, part_look
from helpers.planner.hardware.rank_groups import coordinates, groups

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE = 0.62  # of the height of a band
MOST = 64  # ranks that can be told apart
# axis: what a rank's place on it is called
WORDS = {
    "dp_replicate": "replica",
    "dp_shard": "shard",
    "pp": "stage",
    "cp": "context",
    "tp": "slice",
}


def draw_placement(
    degrees: Mapping[str, int],
    placement: str = "cluster",
    per_node: int = 8,
    partition: "tuple[int, ...] | None" = None,
) -> Picture:
    """The ranks of a plan on their nodes, a row per node, and what each holds.

    Args:
        degrees: ranks of each axis, as {"dp_shard": 2, "pp": 2, "tp": 2}.
        placement: as in engine.placement.rank_grid.
        per_node: devices of a node.
        partition: layers of each stage, to be named beside the stage.

    Returns:
        The figure; a table by axis of how many nodes a group of its ranks spans; alternative text.

    Raises:
        UserError: a wrong placement, more than 64 ranks, or nodes that cannot be filled.
    """
    check_count("per_node", per_node)
    places = coordinates(degrees, placement)
    if len(places) > MOST:
        raise UserError(f"a picture shows at most {MOST} ranks, not {len(places)}")
    if len(places) > per_node and len(places) % per_node:
        raise UserError(f"{len(places)} ranks do not fill nodes of {per_node}")
    if partition is not None and len(partition) != degrees.get("pp", 1):
        raise UserError(f"the partition has {len(partition)} stages, pp is {degrees.get('pp', 1)}")
    used = [axis for axis in axis_order(degrees, placement) if degrees[axis] > 1]
    coloured = "pp" if "pp" in used else next(iter(used), "")
    looks = [part_look(place.get(coloured, 0)) for place in places]
    contents = [_contents(place, used, partition) for place in places]
    fig = _picture(contents, looks, wide=min(per_node, len(places)))
    axis_groups = {axis: groups(degrees, axis, placement) for axis in used}
    table = _table(degrees, axis_groups, per_node)
    spans = table["nodes that a group spans"].to_dict()
    return fig, table, _alt(contents, placement, per_node, spans)


def _contents(
    place: Mapping[str, int], used: list[str], partition: "tuple[int, ...] | None"
) -> list[str]:
    """What a rank holds, in lines: its stage and the layers of it, then its other places."""
    lines = []
    if "pp" in used:
        lines.append(f"stage {place['pp']}")
    if partition is not None:
        lines.append(_layers(layer_ranges(partition)[place.get("pp", 0)]))
    lines += [f"{WORDS[axis]} {place[axis]}" for axis in used if axis != "pp"]
    return lines or ["all of it"]


def _layers(layers: range) -> str:
    if not layers:
        return "no layers"
    if len(layers) == 1:
        return f"layer {layers.start}"
    return f"layers {layers.start}–{layers.stop - 1}"


def _table(
    degrees: Mapping[str, int], axis_groups: Mapping[str, list[list[int]]], per_node: int
) -> "pd.DataFrame":
    pandas = need("pandas", "notebooks")
    return pandas.DataFrame(
        {
            "degree": [degrees[axis] for axis in axis_groups],
            "first group of ranks": [_ranks(ranks[0]) for ranks in axis_groups.values()],
            "nodes that a group spans": [_nodes(ranks, per_node) for ranks in axis_groups.values()],
        },
        index=pandas.Index(list(axis_groups), name="axis, slowest first"),
    )


def _ranks(group: list[int]) -> str:
    return ", ".join(map(str, group[:8])) + (", …" if len(group) > 8 else "")


def _nodes(axis_groups: list[list[int]], per_node: int) -> int:
    """The most nodes that one of the groups spans."""
    return max(len({rank // per_node for rank in group}) for group in axis_groups)


def _picture(contents: list[list[str]], looks: list[Look], wide: int) -> "Figure":
    """A cell a rank, `wide` of them a node; its band on top has the rank's look."""
    tall = 1 + LINE * (0.5 + max(map(len, contents)))
    nodes = len(contents) // wide
    step = tall + 0.75
    fig, axes = new_figure(0.2 + 0.4 * step * nodes, grid=None)
    axes.axis("off")
    axes.set(xlim=(-0.06, wide + 0.06), ylim=(step * nodes, 0))
    for node in range(nodes):
        top = step * node
        words_at(axes, (0, top + 0.42), f"node {node}", **HEADING)
        outline(axes, (-0.04, top + 0.5), wide + 0.08, tall + 0.1, line=1.2)
    for rank, (lines, look) in enumerate(zip(contents, looks)):
        node, cell = divmod(rank, wide)
        _cell(axes, (cell, step * node + 0.55), tall, [f"rank {rank}", *lines], look)
    return fig


def _cell(axes: "Axes", corner: Point, tall: float, lines: list[str], look: Look) -> None:
    """The first line on the band, the others below it."""
    x, y = corner
    fill(axes, (x + 0.04, y + 0.05), 0.92, 0.95, look)
    outline(axes, (x + 0.04, y + 0.05), 0.92, tall - 0.1, line=0.8)
    words_at(axes, (x + 0.5, y + 0.53), lines[0], label=True, size=9)
    for place, line in enumerate(lines[1:], start=1):
        words_at(axes, (x + 0.5, y + 1 + LINE * (place - 0.25)), line, size=8)


def _alt(contents: list[list[str]], placement: str, per_node: int, spans: Mapping[str, int]) -> str:
    """How far each group reaches, and what the ranks of the first node hold."""
    nodes = -(-len(contents) // per_node)
    reach = [
        f"A group of {axis} {'stays on one node' if count == 1 else f'spans {count} nodes'}."
        for axis, count in spans.items()
    ]
    ranks = [f"rank {rank}: {', '.join(lines)}" for rank, lines in enumerate(contents[:per_node])]
    return " ".join(
        [
            f"Placement {placement}: {len(contents)} rank{'s' * (len(contents) > 1)} on "
            f"{nodes} node{'s' * (nodes > 1)}.",
            *reach,
            f"On node 0 {'; '.join(ranks)}.",
        ]
    )
