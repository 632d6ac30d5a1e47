"""What `python -m helpers.leave` does, drawn; and what became of the uses that it found.

fig, table, alt = draw_leaving()
fig, table, sentence = plot_verdicts({"a job": {"converted": 67, "left out": 14, "refused": 0}})
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.figures.charts import paired_bars, stacked_bars
from helpers.lab.figures.drawing import WHITE, WHOLE, arrow, box, canvas, words_at
from helpers.lab.figures.style import Picture, new_figure, title
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

READ = ("script.py", "job.ipynb", "recipe.yaml")
FOUND = {
    "every use": "converted, left out or refused, with the reason",
    "mistakes": "what the script does wrong without a word",
    "a run": "plan, torchrun line, files for clusters",
    "a price": "memory, seconds and dollars, before it starts",
    "the script": "its calls replaced, as a diff",
}
SYNTAX = "syntax trees:\nnothing is run"


def draw_leaving() -> Picture:
    """Files on the left, what reads them in the middle, what comes out on the right."""
    fig, axes = canvas(20.1, 7)
    middle = 3.3
    for place, name in enumerate(READ):
        height = 5.2 - 1.9 * place
        box(axes, (0.1, height - 0.5), 3.5, 1, WHITE)
        words_at(axes, (1.85, height), name)
        arrow(axes, (3.6, height), (5.2, middle))
    box(axes, (5.2, middle - 1), 4, 2, WHOLE)
    words_at(axes, (7.2, middle), SYNTAX)
    for place, (name, words) in enumerate(FOUND.items()):
        _found(axes, 6.1 - 1.4 * place, middle, name, words)
    table = table_of({name: {"what it has": words} for name, words in FOUND.items()}, "comes out")
    listed = "; ".join(f"{name}: {words}" for name, words in FOUND.items())
    alt = (
        f"Three files, {', '.join(READ)}, are read as syntax trees and not run. Out of them come "
        f"five things. {listed}."
    )
    return fig, table, alt


def _found(axes: "Axes", height: float, middle: float, name: str, words: str) -> None:
    arrow(axes, (9.2, middle), (10.6, height))
    box(axes, (10.6, height - 0.55), 9.4, 1.1, WHITE)
    words_at(axes, (10.8, height + 0.2), name, ha="left", weight="bold", size=9.5)
    words_at(axes, (10.8, height - 0.25), words, ha="left", size=9)


def plot_verdicts(counts: Mapping[str, Mapping[str, int]]) -> Picture:
    """Uses of the libraries by what became of them, a bar a job."""
    table = table_of(counts, "uses")
    fig, axes = new_figure(1.2 + 0.45 * len(table), grid="x")
    stacked_bars(axes, table, total="{:,.0f}")
    axes.set_xlabel("uses")
    title(axes, "What became of every use")
    total = table.sum()
    parts = ", ".join(f"{number} {verdict}" for verdict, number in total.items())
    return fig, table, f"{total.sum()} uses in all: {parts}."


def plot_bills(planned: "pd.Series", billed: "pd.Series") -> Picture:
    """Dollars of jobs, two bars each: what training was planned to cost, and what was paid."""
    pandas = need("pandas", "notebooks")
    table = pandas.DataFrame({"planned, training alone": planned, "billed": billed})
    table = table.rename_axis("dollars")
    fig, axes = new_figure(1.4 + 0.6 * len(table), grid="x")
    paired_bars(axes, table)
    axes.set_xlabel("dollars")
    title(axes, "Planned and billed")
    times = (billed / planned).sort_values()
    ends = f"{times.iloc[0]:.1f} ({times.index[0]}) to {times.iloc[-1]:.1f} ({times.index[-1]})"
    return fig, table, f"What was paid is {ends} times what training was planned to cost."
