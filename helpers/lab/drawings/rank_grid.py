"""Which rank holds what on which node, as a picture.

fig, table, alt = draw_placement({"dp_shard": 2, "pp": 4, "tp": 2}, "cluster", per_node=8)
show_figure(fig, alt, table=table)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.engine.pipeline.partition import layer_ranges
from helpers.engine.plan import axis_order
from helpers.lab.figures.training_plots import COLOURS, HATCHES, new_figure
from helpers.planner.hardware.rank_groups import coordinates, groups

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = tuple["Figure", "pd.DataFrame", str]

INK = "#222222"
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
) -> Drawing:
    """The ranks of a plan on their nodes, a row a node, and what each holds.

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
    pandas = need("pandas", "notebooks")
    places = coordinates(degrees, placement)
    if len(places) > MOST:
        raise UserError(f"a picture shows at most {MOST} ranks, not {len(places)}")
    if per_node < 1 or (len(places) > per_node and len(places) % per_node):
        raise UserError(f"{len(places)} ranks do not fill nodes of {per_node}")
    if partition is not None and len(partition) != degrees.get("pp", 1):
        raise UserError(f"the partition has {len(partition)} stages, pp is {degrees.get('pp', 1)}")
    used = [axis for axis in axis_order(degrees, placement) if degrees[axis] > 1]
    held = [_held(place, used, partition) for place in places]
    fig = _picture(places, held, min(per_node, len(places)), _coloured(used))
    spans = [_nodes(groups(degrees, axis, placement), per_node) for axis in used]
    table = pandas.DataFrame(
        {
            "degree": [degrees[axis] for axis in used],
            "first group of ranks": [_first(groups(degrees, axis, placement)) for axis in used],
            "nodes that a group spans": spans,
        },
        index=pandas.Index(used, name="axis, slowest first"),
    )
    return fig, table, _in_words(held, placement, per_node, dict(zip(used, spans)))


def _coloured(used: list[str]) -> str:
    """The axis that the colours show: the stages, else the slowest."""
    return "pp" if "pp" in used else next(iter(used), "")


def _held(
    place: Mapping[str, int], used: list[str], partition: "tuple[int, ...] | None"
) -> list[str]:
    """What a rank holds, in lines: its stage and the layers of it, then its other places."""
    lines = []
    if "pp" in used:
        lines.append(f"stage {place['pp']}")
    if partition is not None:
        lines.append(_run(layer_ranges(partition)[place.get("pp", 0)]))
    lines += [f"{WORDS[axis]} {place[axis]}" for axis in used if axis != "pp"]
    return lines or ["all of it"]


def _run(layers: range) -> str:
    if len(layers) < 2:
        return f"layer {layers.start}" if layers else "no layers"
    return f"layers {layers.start}–{layers.stop - 1}"


def _nodes(found: list[list[int]], per_node: int) -> int:
    """The most nodes that one of the groups spans."""
    return max(len({rank // per_node for rank in group}) for group in found)


def _first(found: list[list[int]]) -> str:
    ranks = list(map(str, found[0]))
    return ", ".join(ranks[:8]) + (", …" if len(ranks) > 8 else "")


def _picture(places: list[dict[str, int]], held: list[list[str]], wide: int, by: str) -> "Figure":
    """A cell a rank, `wide` of them a node; the band on top is coloured by the axis `by`."""
    from matplotlib.patches import Rectangle

    tall = 1 + LINE * (0.5 + max(map(len, held)))
    nodes = len(places) // wide
    step = tall + 0.75
    fig, axes = new_figure(0.2 + 0.4 * step * nodes, grid=None)
    axes.axis("off")
    axes.set(xlim=(-0.06, wide + 0.06), ylim=(step * nodes, 0))
    for node in range(nodes):
        top = step * node
        axes.text(0, top + 0.42, f"node {node}", weight="bold", color=INK, va="bottom")
        frame = Rectangle((-0.04, top + 0.5), wide + 0.08, tall + 0.1, fill=False, ec=INK, lw=1.2)
        axes.add_patch(frame)
        for cell in range(wide):
            rank = node * wide + cell
            _cell(axes, cell, top + 0.55, tall, rank, held[rank], places[rank].get(by, 0))
    return fig


def _cell(
    axes: "Axes", x: float, y: float, tall: float, rank: int, held: list[str], colour: int
) -> None:
    from matplotlib.patches import Rectangle

    band = {"facecolor": COLOURS[colour % 7], "edgecolor": "white", "hatch": HATCHES[colour % 7]}
    axes.add_patch(Rectangle((x + 0.04, y + 0.05), 0.92, 0.95, lw=0, **band))
    axes.add_patch(Rectangle((x + 0.04, y + 0.05), 0.92, tall - 0.1, fill=False, ec=INK, lw=0.8))
    background = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"}
    middle = {"ha": "center", "va": "center", "color": INK}
    axes.text(x + 0.5, y + 0.53, f"rank {rank}", size=9, bbox=background, **middle)
    for i, line in enumerate(held, 1):
        axes.text(x + 0.5, y + 1 + LINE * (i - 0.25), line, size=8, **middle)


def _in_words(
    held: list[list[str]], placement: str, per_node: int, spans: Mapping[str, int]
) -> str:
    """How far each group reaches, and what the ranks of the first node hold."""
    nodes = -(-len(held) // per_node)
    reach = [
        f"A group of {axis} {'stays on one node' if count == 1 else f'spans {count} nodes'}."
        for axis, count in spans.items()
    ]
    ranks = [f"rank {rank}: {', '.join(lines)}" for rank, lines in enumerate(held[:per_node])]
    return " ".join(
        [
            f"Placement {placement}: {len(held)} rank{'s' * (len(held) > 1)} on "
            f"{nodes} node{'s' * (nodes > 1)}.",
            *reach,
            f"On node 0 {'; '.join(ranks)}.",
        ]
    )
