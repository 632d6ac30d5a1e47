"""The plots of finished runs. Each returns the figure, the table of its numbers, and a sentence.

    fig, table, sentence = plot_loss({"one process": base, "tp=2": run})
    show_figure(fig, alt="Loss by step of both runs: ...", table=table, sentence=sentence)

Colours are Okabe and Ito's, told apart with any kind of colour vision; markers and hatches say the
same again. The background is white in every theme.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.runs import Run, compare
from helpers.lab.show import show_figure, show_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from helpers.planner.cost import StateBytes

__all__ = [
    "new_figure",
    "plot_loss",
    "plot_memory",
    "plot_phases",
    "plot_throughput",
    "show_figure",
    "show_table",
]

Plot = tuple["Figure", "pd.DataFrame", str]

# Okabe and Ito 2008, Color universal design
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#000000"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
LINES = ("-", "--", "-.", ":", "-", "--", "-.")

STYLE = {
    "font.size": 10.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
}
WIDTH = 7.2  # inches; 576 pixels in the page
LEAST_S = 1e-3  # a phase that took less did not happen

STATES = ("parameters", "gradients", "optimizer")


def new_figure(height: float = 3.6, grid: str | None = "y") -> tuple["Figure", "Axes"]:
    """An empty figure in the workshop's style, apart from pyplot's global state.

    Args:
        height: in inches; the width is that of a notebook's page.
        grid: lines across the axis `x` or `y`, or none.
    """
    matplotlib = need("matplotlib", "notebooks")
    from matplotlib.figure import Figure

    lines = {"axes.grid": grid is not None, "axes.grid.axis": grid or "both"}
    with matplotlib.rc_context({**STYLE, **lines}):
        fig = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
        return fig, fig.subplots()


def plot_loss(runs: Mapping[str, Run]) -> Plot:
    """Loss by step, a line a run. The table compares each run with the first one, step by step."""
    pandas = need("pandas", "notebooks")
    names = _names(runs)
    losses = {name: runs[name].metrics.set_index("step")["loss"] for name in names}
    fig, axes = new_figure()
    for i, name in enumerate(names):
        loss = losses[name]
        # the first run is drawn broad, so that one that coincides with it is seen on top
        axes.plot(
            loss.index,
            loss.to_numpy(),
            color=COLOURS[i % 7],
            linestyle=LINES[i % 7],
            linewidth=5 if i == 0 and len(names) > 1 else 1.8,
            alpha=0.45 if i == 0 and len(names) > 1 else 1,
            marker=MARKERS[i % 7],
            markersize=5,
            markevery=(i * len(loss) // (10 * len(names)), max(1, len(loss) // 10)),
            label=name,
        )
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False)
    _finish(axes, "Training loss")
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


def plot_throughput(runs: Mapping[str, Run]) -> Plot:
    """Tokens a second, a bar a run: the median after warm-up, with the 10th to 90th percentile."""
    names = _names(runs)
    measured = compare(*(runs[name] for name in names), names=names)
    speed, low, high = (measured[key] for key in ("tokens_per_s", "p10", "p90"))
    fig, axes = new_figure(1.1 + 0.55 * len(names), grid="x")
    bars = axes.barh(
        names,
        speed,
        height=0.62,
        xerr=[(speed - low).clip(lower=0), (high - speed).clip(lower=0)],
        color=[COLOURS[i % 7] for i in range(len(names))],
        edgecolor="white",
        error_kw={"ecolor": BLACK, "capsize": 4, "elinewidth": 1.4},
    )
    for i, bar in enumerate(bars):
        bar.set_hatch(HATCHES[i % 7])
        axes.text(
            max(high.iloc[i], speed.iloc[i]) + 0.015 * high.max(),
            i,
            f"{speed.iloc[i]:,.0f}",
            va="center",
        )
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.15 * high.max()), xlabel="tokens per second")
    _finish(axes, "Throughput: median after warm-up, 10th to 90th percentile")
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


def plot_memory(predicted: "Mapping[str, StateBytes]", runs: Mapping[str, Run]) -> Plot:
    """Bytes of parameters, gradients and optimizer on the fullest rank: predicted and measured.

    Args:
        predicted: by run name, what `planner.cost.state_bytes` says for a rank.
        runs: by the same names; measured is the rank with the most in its `summary`.
    """
    pandas = need("pandas", "notebooks")
    names = _names(runs)
    missing = [name for name in names if name not in predicted]
    if missing:
        raise UserError(f"no prediction for the run {missing[0]!r}; there is: {list(predicted)}")
    measured = {name: _fullest(runs[name]) for name in names}
    bars, rows = [], []
    for name in names:
        said = {state: getattr(predicted[name], state) for state in STATES}
        bars += [(f"{name}\npredicted", said), (f"{name}\nmeasured", measured[name])]
        for state in STATES:
            rows.append((f"{name}: {state}", said[state], measured[name][state]))
        rows.append((f"{name}: total", sum(said.values()), sum(measured[name].values())))
    fig, axes = new_figure(1.2 + 0.5 * len(bars), grid="x")
    _stack(axes, bars)
    table = pandas.DataFrame(rows, columns=["state", "predicted bytes", "measured bytes"])
    table["measured / predicted"] = table["measured bytes"] / table["predicted bytes"]
    worst = (table["measured / predicted"] - 1).abs().max()
    first, last = (sum(measured[name].values()) for name in (names[0], names[-1]))
    sentence = "Measured and predicted state are equal to the byte"
    if worst > 0:
        sentence = f"Measured and predicted state differ by at most {worst:.2g} of it"
    if len(names) > 1:
        sentence += f"; a rank of {names[-1]} holds {last / first:.3f} of what {names[0]} holds"
    return fig, table.set_index("state"), sentence + "."


def plot_phases(run: "Run | Mapping[str, float]", useful: str = "train") -> Plot:
    """Where the wall clock went: phases end to end, a row each, and the share that was `useful`.

    `run` is a finished run, or seconds by phase in their order.
    """
    pandas = need("pandas", "notebooks")
    given = run if isinstance(run, Mapping) else run.phases["seconds"].drop("total").to_dict()
    seconds = {name: value for name, value in given.items() if value >= LEAST_S}
    if useful not in seconds:
        raise UserError(f"no time was spent in the phase {useful!r}; there is: {list(seconds)}")
    total_s = sum(seconds.values())
    fig, axes = new_figure(0.9 + 0.3 * len(seconds), grid="x")
    began = 0.0
    for row, (name, value) in enumerate(seconds.items()):
        colour, hatch = (VERMILLION, "//") if name == useful else (BLUE, "")
        axes.barh(row, value, left=began, color=colour, edgecolor="white", hatch=hatch)
        words = f"{value / total_s:.1%}"
        if began + value < 0.85 * total_s:
            axes.text(began + value + 0.008 * total_s, row, words, va="center")
        else:
            axes.text(began - 0.008 * total_s, row, words, va="center", ha="right")
        began += value
    axes.set_yticks(range(len(seconds)), list(seconds))
    axes.invert_yaxis()
    axes.set(xlim=(0, total_s), xlabel="seconds since the launch")
    _finish(axes, "Where the time went")
    table = pandas.DataFrame({"seconds": {**seconds, "total": total_s}}).rename_axis("phase")
    table["share"] = table["seconds"] / total_s
    sentence = (
        f"Of the {total_s:,.4g} s that the machine is held, {useful} takes "
        f"{seconds[useful]:,.3g} s: {seconds[useful] / total_s:.1%}."
    )
    return fig, table, sentence


def _finish(axes: "Axes", title: str) -> None:
    """What matplotlib takes from its global state at drawing time, said here."""
    axes.set_title(title, loc="left", fontsize=11.5)
    axes.xaxis.set_major_formatter("{x:,.10g}")


def _names(runs: Mapping[str, Run]) -> list[str]:
    if not runs:
        raise UserError("a plot needs at least one run")
    return list(runs)


def _fullest(run: Run) -> dict[str, int]:
    """The states of the rank that holds most."""
    by_rank = run.summary.get("state_bytes")
    if not by_rank:
        raise UserError(f"{run!r} has no state_bytes in its summary")
    most = max(by_rank, key=lambda states: sum(states[state] for state in STATES))
    return {state: most[state] for state in STATES}


def _stack(axes: "Axes", bars: list[tuple[str, dict[str, int]]]) -> None:
    """Horizontal stacked bars of bytes by state, every second one (measured) solid."""
    largest = max(sum(states.values()) for _, states in bars)
    unit, size = next((u, s) for u, s in UNITS if largest >= s)
    for row, (_, states) in enumerate(bars):
        left = 0.0
        for i, state in enumerate(STATES):
            axes.barh(
                row,
                states[state] / size,
                left=left,
                height=0.7,
                color=COLOURS[i] if row % 2 else "white",
                edgecolor="white" if row % 2 else COLOURS[i],
                hatch=HATCHES[i + 1],
                label=state if row == 1 else None,
            )
            left += states[state] / size
        axes.text(left + 0.01 * largest / size, row, f"{left:.3g} {unit}", va="center")
    axes.set_yticks(range(len(bars)), [label for label, _ in bars])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.16 * largest / size), xlabel=unit)
    axes.figure.legend(loc="outside lower center", ncols=3, frameon=False)
    _finish(axes, "Training state on the fullest rank")


UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("bytes", 1))
