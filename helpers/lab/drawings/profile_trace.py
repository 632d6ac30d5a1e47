"""A profiled run as pictures: its timeline, and its memory over a step.

run = launch(..., profile="3:6")
fig, table, alt = draw_timeline(run.traces)
show_figure(fig, alt, table=table)
show_table(run.findings, "What slows the run down")
"""

from collections import Counter
from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.figures.training_plots import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    UNITS,
    VERMILLION,
    YELLOW,
    new_figure,
)
from helpers.trace.intervals import clip, length, union
from helpers.trace.memory import EARLIER, OTHER, TEMPORARY, memory_of_step
from helpers.trace.recorder import RANGES
from helpers.trace.step_times import step_times
from helpers.trace.traces import Slice, Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = tuple["Figure", "pd.DataFrame", str]

GREY, NOTHING = "#8a8a8a", "#dcdcdc"
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
RANGE_LANE, OWN_LANE, MESSAGE_LANE = (0.08, 0.5), (0.46, 0.12), (0.64, 0.28)  # top, height; in rows


def draw_timeline(traces: list[Trace], step: int = -1) -> Drawing:
    """One step, a row a rank: its ranges, and below them what is being communicated.

    Args:
        traces: of all ranks.
        step: index among the traced steps; the last one unless told.

    Returns:
        The figure; milliseconds by rank and range; alternative text.
    """
    begin = min(trace.steps[step].start_s for trace in traces)
    end = max(trace.steps[step].end_s for trace in traces)
    fig, axes = new_figure(1.15 + ROW * len(traces), grid=None)
    seen: Counter[str] = Counter()
    for row, trace in enumerate(traces):
        whole = trace.steps[step]
        _box(axes, whole, begin, (row + RANGE_LANE[0], RANGE_LANE[1]), NOTHING, "")
        for kind, slices in _by_kind(trace, whole).items():
            lane = {"communication": MESSAGE_LANE, "your own": OWN_LANE}.get(kind, RANGE_LANE)
            for one in slices:
                _box(axes, one, begin, (row + lane[0], lane[1]), *LOOKS[kind])
                seen[kind] += one.end_s - one.start_s
    axes.set_yticks([row + 0.5 for row in range(len(traces))], [f"rank {t.rank}" for t in traces])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlim=(0, 1e3 * (end - begin)), ylim=(len(traces), 0))
    axes.set_xlabel("milliseconds since the step began on the first rank")
    axes.set_title(f"One training step ({traces[0].steps[step].name})", loc="left", fontsize=11.5)
    _key(fig, [kind for kind in LOOKS if seen[kind] > LEAST * (end - begin)])
    table = _milliseconds(traces, step)
    return fig, table, _in_words(table, traces[0].steps[step].name)


def draw_memory(trace: Trace, step: int = -1) -> Drawing:
    """A rank's memory by category while a step runs, the categories stacked.

    Returns:
        The figure; bytes by category at the peak; alternative text.
    """
    pandas = need("pandas", "notebooks")
    use = memory_of_step(trace, step)
    at_ms = [1e3 * at_s for at_s in use.at_s]
    fig, axes = new_figure()
    unit, size = next((u, s) for u, s in UNITS if max(use.total) >= s)
    bottom = [0.0] * len(at_ms)
    for category, (colour, hatch) in STACK.items():
        values = use.bytes.get(category)
        if values is None:
            continue
        label = category if max(values) > LEAST * max(use.total) else None
        top = [low + value / size for low, value in zip(bottom, values)]
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "label": label}
        axes.fill_between(at_ms, bottom, top, step="post", lw=0, **look)
        bottom = top
    axes.set(xlim=(0, at_ms[-1]), xlabel="milliseconds since the step began", ylabel=unit)
    axes.set_ylim(bottom=0)
    axes.set_title(f"Memory of rank {trace.rank} in {use.step}", loc="left", fontsize=11.5)
    fig.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    peak = {**use.peak, "total": max(use.total)}
    table = pandas.DataFrame({"bytes at the peak": peak}).rename_axis("category")
    table["share"] = table["bytes at the peak"] / peak["total"]
    when_ms = at_ms[use.total.index(peak["total"])]
    most = max(use.peak, key=use.peak.__getitem__)
    alt = (
        f"Memory of rank {trace.rank} over {use.step}, by category. It peaks {when_ms:.0f} ms into "
        f"the step at {peak['total'] / size:.3g} {unit}, most of it {most} "
        f"({use.peak[most] / size:.3g} {unit})."
    )
    return fig, table, alt


def _by_kind(trace: Trace, whole: Slice) -> dict[str, list[Slice]]:
    """What is drawn of a step: the engine's ranges, the user's own, and communication."""
    kinds: dict[str, list[Slice]] = {"communication": trace.communication}
    for one in trace.named:
        kinds.setdefault(one.name if one.name in RANGES else "your own", []).append(one)
    return {
        kind: [s for s in slices if s.start_s < whole.end_s and s.end_s > whole.start_s]
        for kind, slices in kinds.items()
    }


def _box(
    axes: "Axes", one: Slice, begin: float, lane: tuple[float, float], colour: str, hatch: str
) -> None:
    from matplotlib.patches import Rectangle

    corner, width = (1e3 * (one.start_s - begin), lane[0]), 1e3 * (one.end_s - one.start_s)
    look = {"facecolor": colour, "edgecolor": "white", "hatch": hatch, "lw": 0}
    axes.add_patch(Rectangle(corner, width, lane[1], **look))
    axes.add_patch(Rectangle(corner, width, lane[1], fill=False, edgecolor="white", lw=0.3))


def _key(fig: "Figure", kinds: list[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=LOOKS[k][0], hatch=LOOKS[k][1], edgecolor="white", label=k) for k in kinds
    ]
    patches.append(Patch(facecolor=NOTHING, label="in no range"))
    fig.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False, fontsize=9)


def _milliseconds(traces: list[Trace], step: int) -> "pd.DataFrame":
    """By rank: the step, each range, and the communication that nothing hides."""
    pandas = need("pandas", "notebooks")
    given = {one.name for trace in traces for one in trace.named}
    names = [name for name in RANGES if name in given] + sorted(given - set(RANGES))
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
    return 1e3 * pandas.DataFrame(rows, index=index)


def _in_words(table: "pd.DataFrame", name: str) -> str:
    parts = []
    for rank, row in table.iterrows():
        said = ", ".join(f"{key} {value:.0f}" for key, value in row.drop("step").items())
        parts.append(f"rank {rank} takes {row['step']:.0f} ms ({said})")
    return f"Timeline of {name}, a row a rank: {'; '.join(parts)}."
