"""The plots of finished runs. Each returns the figure, the table of its numbers, and a sentence.

    fig, table, sentence = plot_loss({"one process": base, "tp=2": run})
    show_figure(fig, alt="Loss by step of both runs: ...", table=table, sentence=sentence)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.figures.charts import name_bars, stacked_bars
from helpers.lab.figures.drawing import legend_below
from helpers.lab.figures.style import (
    BLACK,
    BLUE,
    COLOURS,
    ORANGE,
    STATE_LOOKS,
    VERMILLION,
    Picture,
    new_figure,
    series_look,
    title,
    unit_of,
)
from helpers.lab.runs.run import Run, compare

if TYPE_CHECKING:
    import pandas as pd

    from helpers.planner.cost import StateBytes

LEAST_S = 1e-3  # a phase that took less did not happen
STATES = tuple(STATE_LOOKS)
# of the ladder: a column, measured and where it holds {} also predicted, and its panel's title
LADDER = (
    ("state, {} MB", "state of a rank, MB"),
    ("sent a step, {} MB", "a rank sends in a step, MB"),
    ("step, ms", "a step, ms"),
)


def plot_loss(runs: Mapping[str, Run]) -> Picture:
    """Loss by step, a line a run. The table compares each run with the first one, step by step."""
    pandas = need("pandas", "notebooks")
    names = _names(runs)
    losses = {name: runs[name].metrics.set_index("step")["loss"] for name in names}
    fig, axes = new_figure()
    for i, (name, loss) in enumerate(losses.items()):
        # the first run is drawn broad, so that one that coincides with it is seen on top
        broad = i == 0 and len(names) > 1
        every = (i * len(loss) // (10 * len(names)), max(1, len(loss) // 10))
        width = {"linewidth": 5, "alpha": 0.45} if broad else {"linewidth": 1.8}
        marks = {"markersize": 5, "markevery": every}
        axes.plot(loss.index, loss, label=name, **series_look(i), **width, **marks)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False)
    title(axes, "Training loss", plain_numbers=True)
    first = losses[names[0]]
    table = pandas.DataFrame(
        {
            "steps": [len(loss) for loss in losses.values()],
            "first loss": [loss.iloc[0] for loss in losses.values()],
            "last loss": [loss.iloc[-1] for loss in losses.values()],
            "largest difference": [(loss - first).abs().max() for loss in losses.values()],
        },
        index=pandas.Index(names, name="run"),
    )
    sentence = f"The loss of {names[0]} goes from {first.iloc[0]:.3f} to {first.iloc[-1]:.3f}"
    if len(names) > 1:
        apart = table["largest difference"].iloc[1:].max()
        sentence += f"; at no step is another run further from it than {apart:.2g}"
    return fig, table, sentence + "."


def plot_throughput(runs: Mapping[str, Run]) -> Picture:
    """Tokens a second, a bar a run: the median after warm-up, with the 10th to 90th percentile."""
    names = _names(runs)
    measured = compare(*(runs[name] for name in names), names=names)
    speed, low, high = (measured[key] for key in ("tokens_per_s", "p10", "p90"))
    fig, axes = new_figure(1.1 + 0.55 * len(names), grid="x")
    axes.barh(
        names,
        speed,
        height=0.62,
        xerr=[(speed - low).clip(lower=0), (high - speed).clip(lower=0)],
        color=[COLOURS[i % len(COLOURS)] for i in range(len(names))],
        edgecolor="white",
        error_kw={"ecolor": BLACK, "capsize": 4, "elinewidth": 1.4},
    )
    for row, (value, end) in enumerate(zip(speed, high)):
        place = max(value, end) + 0.02 * high.max()
        axes.text(place, row, f"{value:,.0f}", va="center")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.15 * high.max()), xlabel="tokens per second")
    heading = "Throughput: median after warm-up, 10th to 90th percentile"
    title(axes, heading, plain_numbers=True)
    table = measured[["tokens_per_s", "p10", "p90", "relative", "steps", "final_loss"]].rename(
        columns={
            "tokens_per_s": "tokens/s (median)",
            "p10": "10th percentile",
            "p90": "90th percentile",
            "relative": f"relative to {names[0]}",
            "final_loss": "final loss",
        }
    )
    sentence = f"{names[0]} trains {speed.iloc[0]:,.0f} tokens a second"
    for i, name in enumerate(names[1:], start=1):
        sentence += f", {name} {speed.iloc[i] / speed.iloc[0]:.2f} times as many"
    if any(run.summary.get("device") == "cpu" for run in runs.values()):
        sentence += "; on CPU cores this illustrates the method and predicts no GPU"
    return fig, table, sentence + "."
