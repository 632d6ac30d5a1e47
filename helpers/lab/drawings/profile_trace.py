"""A profiled run as pictures: its timeline, and its memory over a step.

run = launch(..., profile="3:6")
fig, table, alt = draw_timeline(run.traces)
show_figure(fig, alt, table=table)
show_table(run.findings, "What slows the run down")
"""

from collections import Counter
from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.figures.drawing import WAITING, box, fill, key, legend_below, name_rows
from helpers.lab.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Picture,
    new_figure,
    title,
    unit_of,
)
from helpers.trace.intervals import clip, length, union
from helpers.trace.memory import EARLIER, OTHER, TEMPORARY, memory_of_step
from helpers.trace.recorder import RANGES
from helpers.trace.step_times import step_times
from helpers.trace.traces import Slice, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

GREY = "#8a8a8a"
# range: colour and hatch
LOOKS = {
    "data": (GREEN, "xx"),
    "forward": (BLUE, ""),
    "backward": (ORANGE, "///"),
    "wait": (GREY, ""),
    "reduce": (PURPLE, "++"),
    "optimizer": (SKY, "..."),
    "communication": (VERMILLION, ""),
    "your own": (YELLOW, ""),
}
# category of memory: the same, from the bottom of the stack
STACK = {
    "parameters": (BLUE, ""),
    "optimizer": (ORANGE, "//"),
    "gradients": (PURPLE, ""),
    "activations": (GREEN, ".."),
    "messages": (VERMILLION, "xx"),
    "batch": (YELLOW, ""),
    OTHER: (GREY, ""),
    EARLIER: (BLACK, ""),
    TEMPORARY: (SKY, "++"),
}
LEAST = 0.005  # of the picture: what takes less is not in its key
ROW = 0.62  # inches a rank
# of a rank's row: top and height
RANGE_LANE = (0.08, 0.5)
LANES = {"your own": (0.46, 0.12), "communication": (0.64, 0.28)}


def draw_timeline(traces: list[Trace], step: int = -1) -> Picture:
    """One step, a row per rank: its ranges, and below them what is being communicated.

    Args:
        traces: of all ranks.
        step: index among the traced steps; the last one unless told.

    Returns:
        The figure; milliseconds by rank and range; alternative text.
    """
    begin_s = min(trace.steps[step].start_s for trace in traces)
    length_s = max(trace.steps[step].end_s for trace in traces) - begin_s
    fig, axes = new_figure(1.15 + ROW * len(traces), grid=None)
    drawn_s: Counter[str] = Counter()
    for row, trace in enumerate(traces):
        drawn_s.update(_draw_rank(axes, trace, step, row, begin_s))
    name_rows(axes, {row + 0.5: f"rank {trace.rank}" for row, trace in enumerate(traces)})
    axes.set(xlim=(0, 1e3 * length_s), ylim=(len(traces), 0))
    axes.set_xlabel("milliseconds since the step began on the first rank")
    name = traces[0].steps[step].name
    title(axes, f"One training step ({name})")
    looks = {kind: look for kind, look in LOOKS.items() if drawn_s[kind] > LEAST * length_s}
    key(fig, {**looks, "in no range": WAITING}, columns=5, size=9)
    table = _milliseconds(traces, step)
    return fig, table, _timeline_alt(table, name)


def draw_memory(trace: Trace, step: int = -1) -> Picture:
    """A rank's memory by category while a step runs, the categories stacked.

    Returns:
        The figure; bytes by category at the peak; alternative text.
    """
    pandas = need("pandas", "notebooks")
    use = memory_of_step(trace, step)
    at_ms = [1e3 * at_s for at_s in use.at_s]
    most = max(use.total)
    unit, size = unit_of(most)
    fig, axes = new_figure()
    bottom = [0.0] * len(at_ms)
    for category, (colour, hatch) in STACK.items():
        values = use.bytes.get(category)
        if values is None:
            continue
        label = category if max(values) > LEAST * most else None
        top = [low + value / size for low, value in zip(bottom, values)]
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "label": label}
        axes.fill_between(at_ms, bottom, top, step="post", lw=0, **look)
        bottom = top
    axes.set(xlim=(0, at_ms[-1]), xlabel="milliseconds since the step began", ylabel=unit)
    axes.set_ylim(bottom=0)
    title(axes, f"Memory of rank {trace.rank} in {use.step}")
    legend_below(fig, ncols=4, fontsize=9)
    table = pandas.DataFrame({"bytes at the peak": {**use.peak, "total": most}})
    table["share"] = table["bytes at the peak"] / most
    largest = max(use.peak, key=use.peak.__getitem__)
    alt = (
        f"Memory of rank {trace.rank} over {use.step}, by category. It peaks "
        f"{at_ms[use.total.index(most)]:.0f} ms into the step at {most / size:.3g} {unit}, most of "
        f"it {largest} ({use.peak[largest] / size:.3g} {unit})."
    )
    return fig, table.rename_axis("category"), alt


def _draw_rank(axes: "Axes", trace: Trace, step: int, row: int, begin_s: float) -> Counter[str]:
    """The boxes of one rank's step; returns the seconds that were drawn of each kind."""
    whole = trace.steps[step]
    top, height = RANGE_LANE
    corner, width = (1e3 * (whole.start_s - begin_s), row + top), 1e3 * _seconds(whole)
    fill(axes, corner, width, height, WAITING)
    drawn_s: Counter[str] = Counter()
    for kind, slices in _by_kind(trace, whole).items():
        top, height = LANES.get(kind, RANGE_LANE)
        for piece in slices:
            corner, width = (1e3 * (piece.start_s - begin_s), row + top), 1e3 * _seconds(piece)
            box(axes, corner, width, height, LOOKS[kind], edge="white", line=0.3)
            drawn_s[kind] += _seconds(piece)
    return drawn_s


def _seconds(piece: Slice) -> float:
    return piece.end_s - piece.start_s


def _by_kind(trace: Trace, whole: Slice) -> dict[str, list[Slice]]:
    """What is drawn of a step: the engine's ranges, the user's own, and communication."""
    kinds: dict[str, list[Slice]] = {"communication": trace.communication}
    for piece in trace.named:
        kind = piece.name if piece.name in RANGES else "your own"
        kinds.setdefault(kind, []).append(piece)
    return {
        kind: [s for s in slices if s.start_s < whole.end_s and s.end_s > whole.start_s]
        for kind, slices in kinds.items()
    }


def _milliseconds(traces: list[Trace], step: int) -> "pd.DataFrame":
    """By rank: the step, each range, and the communication that nothing hides."""
    pandas = need("pandas", "notebooks")
    named = {piece.name for trace in traces for piece in trace.named}
    names = [name for name in RANGES if name in named] + sorted(named - set(RANGES))
    rows = []
    for trace in traces:
        whole = trace.steps[step]
        times = step_times(trace)[step]
        row = {"step": times.step_s}
        for name in names:
            spans = ((s.start_s, s.end_s) for s in trace.ranges(name))
            row[name] = length(union(clip(spans, whole.start_s, whole.end_s)))
        rows.append({**row, "exposed communication": times.exposed_s})
    index = pandas.Index([trace.rank for trace in traces], name="milliseconds of rank")
    return (1e3 * pandas.DataFrame(rows, index=index)).round(1)


def _timeline_alt(table: "pd.DataFrame", name: str) -> str:
    parts = []
    for rank, row in table.iterrows():
        said = ", ".join(f"{key} {value:.0f}" for key, value in row.drop("step").items())
        parts.append(f"rank {rank} takes {row['step']:.0f} ms ({said})")
    return f"Timeline of {name}, a row per rank: {'; '.join(parts)}."
