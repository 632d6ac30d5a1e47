"""The plots of a comparison. Each returns the figure, the table of its numbers, and a sentence.

fig, table, sentence = plot_speeds(compare_runs(sides))
alt = f"Bars of samples per second, two a side. {sentence}"
show_figure(fig, alt, table=table, sentence=sentence)
"""

from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.comparison.results import Comparison
from helpers.lab.figures.charts import lines, paired_bars, stacked_bars
from helpers.lab.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    Picture,
    new_figure,
    series_look,
    title,
)
from helpers.lab.figures.tables import listed

if TYPE_CHECKING:
    import pandas as pd

# part of a bill: words, and colour and hatch
PARTS = {
    "before": ("start, load and check", (SKY, "..")),
    "compile": ("compile", (ORANGE, "//")),
    "train": ("train", (BLUE, "")),
    "rest": ("evaluate, save, end", (GREEN, "xx")),
}
SHOWN = ["samples/s", "with compile", "times as fast, training", "training: lowest"]
SHOWN += ["training: highest", "times as fast, with compile", "loss"]
AXES = {"samples": "samples", "seconds": "seconds of compiling and training"}
EQUAL = {"samples": "samples", "steps": "optimizer steps", "loss": "loss"}
CPU = " On CPU cores this illustrates the method and predicts no GPU."


def plot_speeds(comparison: Comparison) -> Picture:
    """Samples a second, a pair of bars per side: without and with the compile time."""
    table = comparison.speed[SHOWN]
    bars = table[["samples/s", "with compile"]]
    fig, axes = new_figure(1.0 + 0.75 * len(bars), grid="x")
    paired_bars(axes, bars.set_axis(["steady state", "all steps and compiling"], axis=1))
    axes.set_xlabel("samples per second")
    title(axes, f"Throughput over equal {EQUAL[comparison.at]}", plain_numbers=True)
    return fig, table, comparison.sentence + (CPU if _on_cpu(comparison) else "")


def plot_losses(comparison: Comparison, against: str = "samples") -> Picture:
    """Loss of every run, smoothed over equal samples, one colour a side.

    Args:
        against: `samples`; or `seconds`, of compiling and training.
    """
    if against not in AXES:
        raise UserError(f"against is samples or seconds, not {against!r}")
    pandas = need("pandas", "notebooks")
    fig, axes = new_figure()
    looks = {name: series_look(i) for i, name in enumerate(comparison.sides)}
    for (name, repeat), curve in comparison.curves.groupby(["side", "repeat"], sort=False):
        began = comparison.rows.loc[(name, repeat), "compile"] if against == "seconds" else 0.0
        marks = {"markersize": 5, "markevery": max(1, len(curve) // 10)}
        look = {**looks[name], "linewidth": 1.8, "label": name}
        if repeat > 0:
            look |= {"linewidth": 0.9, "label": None, "marker": None}
        axes.plot(curve[against] + began, curve["loss"], **marks, **look)
    target = comparison.target_loss
    axes.axhline(target, color=BLACK, linewidth=1, linestyle=":")
    axes.legend(frameon=False)
    axes.set(xlabel=AXES[against], ylabel="loss")
    title(axes, f"Loss against {AXES[against]}; dotted: {target:.4g}", plain_numbers=True)
    reach = "samples" if against == "samples" else "with compile s"
    reached = comparison.to_target[reach].rename(f"{against} to {target:.4g}")
    table = pandas.concat([comparison.speed["loss"].rename("last loss"), reached], axis=1)
    words = [f"{name} after {value:,.4g}" for name, value in reached.items()]
    return fig, table, f"A loss of {target:.4g} is reached by {listed(words)} {against}."


def plot_times(comparison: Comparison) -> Picture:
    """The billed seconds of a run of each side, by what they went into."""
    bill = comparison.bill
    words, looks = zip(*PARTS.values())
    fig, axes = new_figure(1.1 + 0.5 * len(bill), grid="x")
    stacked_bars(axes, bill[list(PARTS)].set_axis(words, axis=1), looks, total="{:,.4g} s")
    axes.set_xlabel("seconds")
    title(axes, f"Billed seconds over equal {EQUAL[comparison.at]}", plain_numbers=True)
    said = [
        f"{name} trains for {row['train']:,.4g} s of {row['billed']:,.4g} s"
        for name, row in bill.iterrows()
    ]
    return fig, bill, f"{listed(said)}."


def plot_costs(comparison: Comparison) -> Picture:
    """What a run of each side costs in all, and what of it up to the target loss."""
    if not comparison.price_per_hour:
        raise UserError("there is no price: give price_per_hour to compare_runs")
    pandas = need("pandas", "notebooks")
    to_target = comparison.to_target["billed s"] * (comparison.price_per_hour / 3600)
    costs = {
        "cost of the run": comparison.bill["cost"],
        f"cost to a loss of {comparison.target_loss:.4g}": to_target,
    }
    table = pandas.DataFrame(costs)
    fig, axes = new_figure(1.0 + 0.75 * len(table), grid="x")
    paired_bars(axes, table)
    axes.set_xlabel("dollars")
    title(axes, f"Cost at {comparison.price_per_hour:g} $ an hour", plain_numbers=True)
    words = [f"{name} costs {value:.3g} dollars" for name, value in table.iloc[:, 0].items()]
    return fig, table, f"{listed(words)}, from the launch to the end."


def plot_break_even(comparison: Comparison) -> Picture:
    """Seconds of compiling and training against samples, a line per side: where do they cross?"""
    pandas = need("pandas", "notebooks")
    table, compile_s = comparison.break_even, comparison.bill["compile"]
    trained = float(comparison.work["samples"].max())
    most = max(trained, 1.3 * table["samples"].fillna(0.0).max())
    ends = {0.0: compile_s, most: compile_s + most / comparison.speed["samples/s"]}
    fig, axes = new_figure()
    lines(axes, pandas.DataFrame(ends).T)
    axes.axvline(trained, color=BLACK, linewidth=1, linestyle=":", label="samples of these runs")
    axes.legend(frameon=False)
    axes.set(xlim=(0, most), xlabel="samples", ylabel="seconds of compiling and training")
    axes.set_ylim(bottom=0)
    title(axes, "When is the compile time paid back?", plain_numbers=True)
    return fig, table, " ".join(_paid_back(name, row) for name, row in table.iterrows())


def _paid_back(name: str, row: "pd.Series") -> str:
    if row["extra compile s"] == 0:
        return f"{name} compiles for no longer."
    if not row["gained s a sample"] > 0:
        return f"{name} gains nothing a sample, so its compile time is never paid back."
    return (
        f"{name} compiles for {row['extra compile s']:.3g} s more and has gained that back after "
        f"{row['samples']:,.0f} samples, {row['seconds']:,.4g} s of training."
    )


def _on_cpu(comparison: Comparison) -> bool:
    runs = [run for repeats in comparison.sides.values() for run in repeats]
    return any(run.summary.get("device") == "cpu" for run in runs)
