"""The plots of a comparison. Each returns the figure, the table of its numbers, and a sentence.

fig, table, sentence = plot_speeds(compare_runs(sides))
alt = f"Bars of samples a second, two a side. {sentence}"
show_figure(fig, alt, table=table, sentence=sentence)
"""

from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.comparison.loss_curve import curve
from helpers.lab.comparison.results import Comparison
from helpers.lab.figures.training_plots import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    LINES,
    MARKERS,
    ORANGE,
    SKY,
    Plot,
    new_figure,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# part of a bill: colour, hatch, words
PARTS = {
    "before": (SKY, "..", "start and load"),
    "compile": (ORANGE, "//", "compile"),
    "train": (BLUE, "", "train"),
    "rest": (GREEN, "xx", "evaluate, save, end"),
}
SHOWN = ["samples/s", "with compile", "times as fast, training", "training: lowest"]
SHOWN += ["training: highest", "times as fast, with compile", "loss"]
CPU = " On CPU cores this illustrates the method and predicts no GPU."


def plot_speeds(found: Comparison) -> Plot:
    """Samples a second, a pair of bars a side: without and with the compile time."""
    table = found.speed[SHOWN]
    bars = table[["samples/s", "with compile"]]
    bars = bars.set_axis(["steady state", "all steps and compiling"], axis=1)
    fig, axes = _paired_bars(bars)
    axes.set_xlabel("samples per second")
    _title(axes, f"Throughput over equal {_held(found)}")
    return fig, table, found.sentence + _on_cpu(found)


def plot_losses(found: Comparison, against: str = "samples") -> Plot:
    """Loss of every run, smoothed over equal samples, one colour a side.

    Args:
        against: `samples`; or `seconds`, of compiling and training.
    """
    pandas = need("pandas", "notebooks")
    if against not in ("samples", "seconds"):
        raise UserError(f"against is samples or seconds, not {against!r}")
    fig, axes = new_figure()
    for i, (name, runs) in enumerate(found.sides.items()):
        for number, run in enumerate(runs):
            along = curve(run, found.window)
            began = run.phases.loc["compile", "seconds"] if against == "seconds" else 0.0
            axes.plot(
                along[against] + began,
                along["loss"],
                color=COLOURS[i % 7],
                linestyle=LINES[i % 7],
                linewidth=1.8 if number == 0 else 0.9,
                marker=MARKERS[i % 7] if number == 0 else None,
                markersize=5,
                markevery=max(1, len(along) // 10),
                label=name if number == 0 else None,
            )
    axes.axhline(found.target_loss, color=BLACK, linewidth=1, linestyle=":")
    axes.legend(frameon=False)
    axis = "samples" if against == "samples" else "seconds of compiling and training"
    axes.set(xlabel=axis, ylabel="loss")
    _title(axes, f"Loss against {axis}; dotted: {found.target_loss:.4g}")
    reach = "samples" if against == "samples" else "with compile s"
    table = pandas.DataFrame(
        {
            "last loss": {name: found.final_loss(name) for name in found.sides},
            f"{against} to {found.target_loss:.4g}": found.to_target[reach],
        }
    ).rename_axis("side")
    words = [f"{name} after {value:,.4g}" for name, value in table.iloc[:, 1].items()]
    return fig, table, f"A loss of {found.target_loss:.4g} is reached by {_and(words)} {against}."


def plot_times(found: Comparison) -> Plot:
    """The billed seconds of a run of each side, by what they went into."""
    bill = found.bill
    fig, axes = new_figure(1.1 + 0.5 * len(bill), grid="x")
    largest = bill["billed"].max()
    left = 0.0 * bill["billed"]
    for part, (colour, hatch, words) in PARTS.items():
        axes.barh(
            range(len(bill)),
            bill[part],
            left=left,
            height=0.6,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=words,
        )
        left = left + bill[part]
    for row, value in enumerate(bill["billed"]):
        axes.text(value + 0.01 * largest, row, f"{value:,.4g} s", va="center", size=9)
    _rows(axes, list(bill.index))
    axes.set(xlim=(0, 1.15 * largest), xlabel="seconds")
    fig.legend(loc="outside lower center", ncols=4, frameon=False)
    _title(axes, f"Billed seconds over equal {_held(found)}")
    words = [
        f"{name} trains for {row['train']:,.4g} s of {row['billed']:,.4g} s"
        for name, row in bill.iterrows()
    ]
    return fig, bill, f"{_and(words)}."


def plot_costs(found: Comparison) -> Plot:
    """What a run of each side costs in all, and what of it up to the target loss."""
    if not found.price_per_hour:
        raise UserError("there is no price: give price_per_hour to compare_runs")
    pandas = need("pandas", "notebooks")
    cent = found.price_per_hour / 3600
    table = pandas.DataFrame(
        {
            "cost of the run": found.bill["cost"],
            f"cost to a loss of {found.target_loss:.4g}": found.to_target["billed s"] * cent,
        }
    )
    fig, axes = _paired_bars(table)
    axes.set_xlabel("dollars")
    _title(axes, f"Cost at {found.price_per_hour:g} $ an hour")
    words = [f"{name} costs {value:.3g} dollars" for name, value in table.iloc[:, 0].items()]
    return fig, table, f"{_and(words)}, from the launch to the end."


def plot_break_even(found: Comparison) -> Plot:
    """Seconds of compiling and training against samples, a line a side: where do they cross?"""
    table = found.break_even
    rates = {name: found.speed.loc[name, "samples/s"] for name in found.sides}
    compile_s = {name: found.bill.loc[name, "compile"] for name in found.sides}
    trained = float(found.work["samples"].max())
    most = max(trained, 1.3 * table["samples"].max()) if table["samples"].notna().any() else trained
    fig, axes = new_figure()
    for i, name in enumerate(found.sides):
        ends = [compile_s[name], compile_s[name] + most / rates[name]]
        axes.plot(
            [0, most],
            ends,
            color=COLOURS[i % 7],
            linestyle=LINES[i % 7],
            marker=MARKERS[i % 7],
            label=name,
        )
    axes.axvline(trained, color=BLACK, linewidth=1, linestyle=":", label="samples of these runs")
    axes.set(xlim=(0, most), xlabel="samples", ylabel="seconds of compiling and training")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    _title(axes, "When is the compile time paid back?")
    return fig, table, " ".join(_paid_back(name, row) for name, row in table.iterrows())


def _paired_bars(table: "pd.DataFrame") -> tuple["Figure", "Axes"]:
    """A group of bars a row, a bar a column."""
    fig, axes = new_figure(1.0 + 0.75 * len(table), grid="x")
    largest = table.max().max()
    for i, (column, shift) in enumerate(zip(table, (-0.19, 0.19), strict=True)):
        rows = [row + shift for row in range(len(table))]
        look = {"color": COLOURS[i], "hatch": ("", "//")[i], "edgecolor": "white"}
        axes.barh(rows, table[column], height=0.36, label=column, **look)
        for row, value in zip(rows, table[column]):
            axes.text(value + 0.01 * largest, row, f"{value:,.4g}", va="center", size=9)
    _rows(axes, list(table.index))
    axes.set_xlim(0, 1.15 * largest)
    fig.legend(loc="outside lower center", ncols=2, frameon=False)
    return fig, axes


def _paid_back(name: str, row: "pd.Series") -> str:
    if row["extra compile s"] == 0:
        return f"{name} compiles for no longer."
    if not row["gained s a sample"] > 0:
        return f"{name} gains nothing a sample, so its compile time is never paid back."
    return (
        f"{name} compiles for {row['extra compile s']:.3g} s more and has gained that back after "
        f"{row['samples']:,.0f} samples, {row['seconds']:,.4g} s of training."
    )


def _title(axes: "Axes", text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11.5)
    axes.xaxis.set_major_formatter("{x:,.10g}")


def _rows(axes: "Axes", names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _held(found: Comparison) -> str:
    return {"samples": "samples", "steps": "optimizer steps", "loss": "loss"}[found.at]


def _on_cpu(found: Comparison) -> str:
    runs = [run for each in found.sides.values() for run in each]
    return CPU if any(run.summary.get("device") == "cpu" for run in runs) else ""


def _and(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
