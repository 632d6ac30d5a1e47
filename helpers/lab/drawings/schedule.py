"""A pipeline step as a picture: a row a rank, a box an action, grey where the rank waits.

fig, table, alt = draw_schedule({"gpipe": simulate(gpipe(4, 8)), "1f1b": simulate(...)})
show_figure(fig, alt, table=table)
"""

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.engine.pipeline.simulator import Span, Timeline
from helpers.lab.figures.training_plots import BLUE, ORANGE, SKY, VERMILLION, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = tuple["Figure", "pd.DataFrame", str]

INK = "#222222"
WAITING = "#dcdcdc"
# kind: colour, hatch, words
KINDS = {
    "F": (BLUE, "", "F forward"),
    "B": (ORANGE, "//", "B backward"),
    "I": (VERMILLION, "\\\\", "I input gradient"),
    "W": (SKY, "...", "W weight gradients"),
}
ROW = 0.34  # inches
ROOM = 0.012  # of the width: what a digit needs
LANE = 0.62  # rows
GAP = 0.25
RUNS = 6  # of one kind, said of a rank in the alternative text


def draw_schedule(timelines: "Timeline | Mapping[str, Timeline]", unit: str = "s") -> Drawing:
    """Timelines of one or several schedules, one below the other on one clock.

    The number in a box is its micro-batch, left out where boxes are too small. A rank with several
    stages has a lane for each; it waits where it is grey in all of them.

    Args:
        timelines: simulated or measured; several by name, to compare.
        unit: of the clock.

    Returns:
        The figure; a table by rank of one timeline, or by name of several; alternative text.
    """
    need("matplotlib", "notebooks")
    many = isinstance(timelines, Mapping)
    given = dict(timelines) if many else {"": timelines}
    if not given:
        raise UserError("a picture needs at least one timeline")
    height = sum(bool(name) + _height(timeline) + GAP for name, timeline in given.items())
    fig, axes = new_figure(0.95 + ROW * height, grid=None)
    longest_s = max(timeline.makespan_s for timeline in given.values())
    top, ticks = 0.0, {}
    for name, timeline in given.items():
        if name:
            words = f"{name}: {timeline.makespan_s:.4g} {unit}, {timeline.bubble:.1%} bubble"
            axes.text(0, top + 0.8, words, weight="bold", color=INK, va="bottom")
            top += 1
        ticks |= _rows(axes, timeline, top, longest_s)
        top += _height(timeline) + GAP
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlim=(0, longest_s), ylim=(top, 0), xlabel=f"time in {unit}")
    kinds = {span.action.kind for t in given.values() for rank in t.spans for span in rank}
    _key(fig, [kind for kind in KINDS if kind in kinds])
    return fig, _table(given, unit) if many else _by_rank(timelines, unit), _in_words(given, unit)


def _lanes(spans: "tuple[Span, ...]") -> list[int]:
    """The stages of a rank."""
    return sorted({span.action.stage for span in spans})


def _height(timeline: Timeline) -> float:
    """Of all its ranks, in rows: a rank of one stage is 1 high, one of several a lane for each."""
    return sum(_rank_height(_lanes(spans)) for spans in timeline.spans)


def _rank_height(lanes: list[int]) -> float:
    return max(1.0, LANE * len(lanes) + 0.15)


def _rows(axes: "Axes", timeline: Timeline, top: float, longest_s: float) -> dict[float, str]:
    """Draw the ranks from `top` down; returns the label of each and where it goes."""
    from matplotlib.patches import Rectangle

    began = min(span.start_s for spans in timeline.spans for span in spans)
    last = max(span.action.microbatch for spans in timeline.spans for span in spans)
    room_s = ROOM * len(str(last)) * longest_s
    ticks = {}
    for rank, spans in enumerate(timeline.spans):
        lanes = _lanes(spans)
        height = _rank_height(lanes)
        inside = height - 0.16
        for start_s, end_s in _waits(timeline, rank):
            corner = start_s - began, top + 0.08
            axes.add_patch(Rectangle(corner, end_s - start_s, inside, color=WAITING, lw=0))
        for span in spans:
            lane = lanes.index(span.action.stage)
            corner = span.start_s - began, top + 0.08 + inside * lane / len(lanes)
            _box(axes, span, corner, inside / len(lanes), room_s)
        stages = f"\nstages {', '.join(map(str, lanes))}" if len(lanes) > 1 else ""
        ticks[top + height / 2] = f"rank {rank}{stages}"
        top += height
    return ticks


def _waits(timeline: Timeline, rank: int) -> list[tuple[float, float]]:
    """From when to when a rank does nothing."""
    every = [span for spans in timeline.spans for span in spans]
    ends = [min(span.start_s for span in every), *(span.end_s for span in timeline.spans[rank])]
    starts = [*(span.start_s for span in timeline.spans[rank]), max(span.end_s for span in every)]
    return [(end, start) for end, start in zip(ends, starts) if start > end]


def _box(
    axes: "Axes", span: Span, corner: tuple[float, float], height: float, room_s: float
) -> None:
    """One action; its number where it is longer than `room_s`."""
    from matplotlib.patches import Rectangle

    colour, hatch, _ = KINDS[span.action.kind]
    width = span.end_s - span.start_s
    numbered = width > room_s * (1.8 if hatch else 1)  # a number on a hatch stands on white
    axes.add_patch(
        Rectangle(corner, width, height, facecolor=colour, edgecolor="white", hatch=hatch, lw=0)
    )
    line = 0.8 if numbered else 0.3
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="white", lw=line))
    if numbered:
        background = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        axes.text(
            corner[0] + width / 2,
            corner[1] + height / 2 + 0.02,
            str(span.action.microbatch),
            ha="center",
            va="center",
            size=7.5,
            color=INK if hatch else "white",
            bbox=background if hatch else None,
        )


def _key(fig: "Figure", kinds: list[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=KINDS[k][0], hatch=KINDS[k][1], edgecolor="white", label=KINDS[k][2])
        for k in kinds
    ]
    patches.append(Patch(facecolor=WAITING, label="waiting"))
    fig.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)


def _by_rank(timeline: Timeline, unit: str) -> "pd.DataFrame":
    pandas = need("pandas", "notebooks")
    return pandas.DataFrame(
        {
            f"busy {unit}": timeline.busy_s,
            "bubble": timeline.bubbles,
            "most held": timeline.peak_bytes or [None] * len(timeline.spans),
        },
        index=pandas.RangeIndex(len(timeline.spans), name="rank"),
    )


def _table(given: Mapping[str, Timeline], unit: str) -> "pd.DataFrame":
    pandas = need("pandas", "notebooks")
    return pandas.DataFrame(
        {
            f"step {unit}": [timeline.makespan_s for timeline in given.values()],
            "bubble": [timeline.bubble for timeline in given.values()],
            "most held by a rank": [max(t.peak_bytes, default=None) for t in given.values()],
        },
        index=pandas.Index(list(given), name="schedule"),
    )


def _in_words(given: Mapping[str, Timeline], unit: str) -> str:
    """Each timeline's numbers, and the order in which its first and last rank work."""
    parts = []
    for name, timeline in given.items():
        orders = "; ".join(
            f"rank {rank} runs {_order(timeline.spans[rank])}"
            for rank in sorted({0, len(timeline.spans) - 1})
        )
        title = f"{name}, " if name else ""
        parts.append(
            f"{title}{len(timeline.spans)} ranks, {timeline.makespan_s:.4g} {unit}, "
            f"{timeline.bubble:.1%} of it waiting: {orders}"
        )
    return "Timeline of one pipeline step, a row a rank. " + ". ".join(parts) + "."


def _order(spans: "tuple[Span, ...]") -> str:
    """The first kinds in their order, as `4 F, 1 B, 1 F and so on`."""
    runs = [(kind, len(list(run))) for kind, run in groupby(span.action.kind for span in spans)]
    words = ", ".join(f"{length} {kind}" for kind, length in runs[:RUNS])
    return words + (" and so on" if len(runs) > RUNS else "")
