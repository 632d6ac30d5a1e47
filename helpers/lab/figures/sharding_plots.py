"""Plots of what is shared over ranks: the state rung by rung, and sequences by their length.

fig, table, sentence = plot_ladder(compare_rungs(report, shape))
show_figure(fig, alt="State, traffic and time by rung", table=table, sentence=sentence)

fig, table, sentence = plot_by_length(activations, "activations of a rank, MB")
"""

from typing import TYPE_CHECKING

from helpers.lab.figures.charts import lines, name_bars, powers_of_two
from helpers.lab.figures.drawing import legend_below
from helpers.lab.figures.style import BLACK, BLUE, ORANGE, Picture, new_figure, title
from helpers.lab.runs.shard_ladder import SENT_COLUMN

if TYPE_CHECKING:
    import pandas as pd

# columns of the table, what was measured and what was predicted of it; the title of their panel
PANELS = (
    ("state, measured MB", "state, predicted MB", "state of a rank, MB"),
    (SENT_COLUMN, "sent per step, predicted MB", "a rank sends in a step, MB"),
    ("step, ms", None, "a step, ms"),
)
PREDICTED = {"fill": False, "edgecolor": ORANGE, "linewidth": 2, "linestyle": "--"}


def plot_ladder(table: "pd.DataFrame") -> Picture:
    """State, traffic and time, side by side, a row per rung; predictions are outlines;
    whiskers go from the shortest step to the longest.

    Args:
        table: as helpers.lab.runs.shard_ladder.compare_rungs makes it.
    """
    fig, panels = new_figure(1.3 + 0.4 * len(table), grid="x", panels=len(PANELS))
    rows = range(len(table))
    for axes, (column, predicted, heading) in zip(panels, PANELS):
        measured = ends = table[column]
        axes.barh(rows, measured, height=0.55, color=BLUE, label="measured")
        if predicted:
            axes.barh(rows, table[predicted], height=0.8, label="predicted", **PREDICTED)
        else:
            ends = table["longest, ms"]
            whiskers = [measured - table["shortest, ms"], ends - measured]
            axes.errorbar(measured, rows, xerr=whiskers, fmt="none", ecolor=BLACK, capsize=3)
        for row, value, end in zip(rows, measured, ends):
            axes.text(end, row, f" {value:,.0f}", va="center")
        axes.set_xlim(0, 1.35 * ends.max())
        axes.set_title(heading, loc="left", fontsize=10.5)
    name_bars(panels[0], list(table.index))
    legend_below(fig, handles=panels[0].containers, ncols=2)
    first, last = table.iloc[0], table.loc["ZeRO-3"] if "ZeRO-3" in table.index else table.iloc[-1]
    less = last["state, measured MB"] / first["state, measured MB"]
    more = last[SENT_COLUMN] / first[SENT_COLUMN]
    sentence = (
        f"{last.name} holds {less:.2f} of the state of {first.name} and sends {more:.2f} times as "
        f"much."
    )
    return fig, table, sentence


def plot_by_length(table: "pd.DataFrame", what: str) -> Picture:
    """A line a way, both axes logarithmic: what grows as the tokens do is straight.

    Args:
        table: by tokens of a row, a column for each way; the first column is compared with.
        what: is plotted, with its unit.
    """
    fig, axes = new_figure(3.6)
    lines(axes, table)
    axes.set_yscale("log", base=2)
    powers_of_two(axes, list(table.index))
    axes.yaxis.set_major_formatter("{x:,.4g}")
    axes.set(xlabel="tokens of a row", ylabel=what)
    legend_below(fig, ncols=3)
    title(axes, f"{what.partition(',')[0].capitalize()} by the length of a row")
    longest = table.index[-1]
    beside = table.loc[longest] / table.loc[longest].iloc[0]
    words = ", ".join(f"{name} holds {share:.2f}" for name, share in beside.iloc[1:].items())
    return fig, table, f"At {longest:,} tokens {words} of what {beside.index[0]} holds."
