"""A pipeline step as a picture: a row per rank, a box an action, grey where the rank waits.

timelines = {name: simulate(make_schedule(name, 4, 8)) for name in ("gpipe", "1f1b")}
fig, table, alt = draw_schedule(timelines)
show_figure(fig, alt, table=table)
"""

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from helpers.engine.errors import UserError, need
from helpers.engine.pipeline.simulator import Span, Timeline
from helpers.lab.figures.drawing import HEADING, WAITING, Point, box, fill, key, name_rows, words_at
from helpers.lab.figures.style import BLUE, INK, ORANGE, SKY, VERMILLION, Look, Picture, new_figure
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Kind(NamedTuple):
    """How the actions of a kind are drawn and called."""

    look: Look
    words: str


KINDS = {
    "F": Kind((BLUE, ""), "F forward"),
    "B": Kind((ORANGE, "//"), "B backward"),
    "I": Kind((VERMILLION, "\\\\"), "I input gradient"),
    "W": Kind((SKY, "..."), "W weight gradients"),
}
ROW = 0.34  # inches
ROOM = 0.012  # of the width: what a digit needs
LANE = 0.62  # rows
GAP = 0.25
NARROW = "; a box too narrow for its micro-batch's number has none"
RUNS = 6  # of one kind, said of a rank in the alternative text


def draw_schedule(timelines: "Timeline | Mapping[str, Timeline]", unit: str = "s") -> Picture:
    """Timelines of one or several schedules, one below the other on one clock.

    The number in a box is its micro-batch, left out where boxes are too small. A rank with several
    stages has a lane for each; it waits where it is grey in all of them.

    Args:
        timelines: simulated or measured; several by name, to compare.
        unit: of the clock.

    Returns:
        The figure; a table by rank of one timeline, or by name of several; alternative text.
    """
    many = isinstance(timelines, Mapping)
    by_name = dict(timelines) if many else {"": timelines}
    if not by_name:
        raise UserError("a picture needs at least one timeline")
    height = sum(bool(name) + _height(timeline) + GAP for name, timeline in by_name.items())
    fig, axes = new_figure(0.95 + ROW * height, grid=None)
    longest_s = max(timeline.makespan_s for timeline in by_name.values())
    top, names, numbered = 0.0, {}, True
    for name, timeline in by_name.items():
        if name:
            words = f"{name}: {timeline.makespan_s:.4g} {unit}, {timeline.bubble:.1%} bubble"
            words_at(axes, (0, top + 0.8), words, **HEADING)
            top += 1
        named, all_numbered = _draw_ranks(axes, timeline, top, longest_s)
        names, numbered = names | named, numbered and all_numbered
        top += _height(timeline) + GAP
    name_rows(axes, names)
    axes.set(
        xlim=(0, longest_s), ylim=(top, 0), xlabel=f"time in {unit}{'' if numbered else NARROW}"
    )
    drawn = {
        s.action.kind for timeline in by_name.values() for rank in timeline.spans for s in rank
    }
    looks = {kind.words: kind.look for letter, kind in KINDS.items() if letter in drawn}
    key(fig, {**looks, "waiting": WAITING}, columns=5, size=8.5)
    table = _by_name(by_name, unit) if many else _by_rank(timelines, unit)
    return fig, table, _alt(by_name, unit)


def _lanes(spans: "tuple[Span, ...]") -> list[int]:
    """The stages of a rank."""
    return sorted({span.action.stage for span in spans})


def _height(timeline: Timeline) -> float:
    """Of all its ranks, in rows: a rank of one stage is 1 high, one of several a lane for each."""
    return sum(_rank_height(_lanes(spans)) for spans in timeline.spans)


def _rank_height(lanes: list[int]) -> float:
    return max(1.0, LANE * len(lanes) + 0.15)


def _draw_ranks(
    axes: "Axes", timeline: Timeline, top: float, longest_s: float
) -> tuple[dict[float, str], bool]:
    """Draw the ranks from `top` down; returns the name of each lane and where it goes, and whether
    all actions have their numbers."""
    began_s = min(span.start_s for spans in timeline.spans for span in spans)
    ended_s = max(span.end_s for spans in timeline.spans for span in spans)
    last = max(span.action.microbatch for spans in timeline.spans for span in spans)
    room_s = ROOM * len(str(last)) * longest_s
    names, numbered = {}, True
    for rank, spans in enumerate(timeline.spans):
        lanes = _lanes(spans)
        height = _rank_height(lanes)
        inside = height - 0.16
        for start_s, end_s in _waits(spans, began_s, ended_s):
            fill(axes, (start_s - began_s, top + 0.08), end_s - start_s, inside, WAITING)
        for span in spans:
            lane = inside / len(lanes)
            corner = span.start_s - began_s, top + 0.08 + lane * lanes.index(span.action.stage)
            numbered = _action(axes, span, corner, lane, room_s) and numbered
        for place, stage in enumerate(lanes):
            words = f"rank {rank}" + (f", stage {stage}" if len(lanes) > 1 else "")
            names[top + 0.08 + inside * (place + 0.5) / len(lanes)] = words
        top += height
    return names, numbered


def _waits(spans: "tuple[Span, ...]", began_s: float, ended_s: float) -> list[tuple[float, float]]:
    """From when to when a rank does nothing."""
    ends = [began_s, *(span.end_s for span in spans)]
    starts = [*(span.start_s for span in spans), ended_s]
    return [(end, start) for end, start in zip(ends, starts) if start > end]


def _action(axes: "Axes", span: Span, corner: Point, height: float, room_s: float) -> bool:
    """One action; its number where it is longer than `room_s`. Returns whether it has one."""
    look = KINDS[span.action.kind].look
    hatched = bool(look[1])
    width = span.end_s - span.start_s
    numbered = width > room_s * (1.8 if hatched else 1)  # a number on a hatch stands on white
    box(axes, corner, width, height, look, edge="white", line=0.8 if numbered else 0.3)
    if numbered:
        centre = corner[0] + width / 2, corner[1] + height / 2 + 0.02
        font = {"size": 7.5, "color": INK if hatched else "white"}
        words_at(axes, centre, str(span.action.microbatch), label=hatched, **font)
    return numbered


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


def _by_name(timelines: Mapping[str, Timeline], unit: str) -> "pd.DataFrame":
    rows = {
        name: {
            f"step {unit}": timeline.makespan_s,
            "bubble": timeline.bubble,
            "most held by a rank": max(timeline.peak_bytes, default=None),
        }
        for name, timeline in timelines.items()
    }
    return table_of(rows, "schedule")


def _alt(timelines: Mapping[str, Timeline], unit: str) -> str:
    """Each timeline's numbers, and the order in which its first and last rank work."""
    parts = []
    for name, timeline in timelines.items():
        orders = "; ".join(
            f"rank {rank} runs {_order(timeline.spans[rank])}"
            for rank in sorted({0, len(timeline.spans) - 1})
        )
        heading = f"{name}, " if name else ""
        parts.append(
            f"{heading}{len(timeline.spans)} ranks, {timeline.makespan_s:.4g} {unit}, "
            f"{timeline.bubble:.1%} of it waiting: {orders}"
        )
    return "Timeline of one pipeline step, a row per rank. " + ". ".join(parts) + "."


def _order(spans: "tuple[Span, ...]") -> str:
    """The first kinds in their order, as `4 F, 1 B, 1 F and so on`."""
    runs = [(kind, len(list(run))) for kind, run in groupby(span.action.kind for span in spans)]
    words = ", ".join(f"{length} {kind}" for kind, length in runs[:RUNS])
    return words + (" and so on" if len(runs) > RUNS else "")
