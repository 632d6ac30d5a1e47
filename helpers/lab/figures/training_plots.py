"""The plots of finished runs. Each returns the figure, the table of its numbers, and a sentence.

fig, table, sentence = plot_loss({"one process": base, "tp=2": run})
show_figure(fig, alt="Loss by step of both runs: ...", table=table, sentence=sentence)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.figures.charts import name_bars, stacked_bars
from helpers.lab.figures.style import (
    BLACK,
    BLUE,
    STATE_LOOKS,
    VERMILLION,
    Picture,
    new_figure,
    part_look,
    series_look,
    title,
    unit_of,
)
from helpers.lab.paths import shown
from helpers.lab.runs.reading import are_sizes
from helpers.lab.runs.run import Run, compare

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from helpers.planner.cost import StateBytes

LEAST_S = 1e-3  # a phase that took less did not happen
STATES = tuple(STATE_LOOKS)


def plot_loss(runs: Mapping[str, Run], events: Mapping[int, str] | None = None) -> Picture:
    """Loss by step, a line per run. The table compares each run with the first, step by step.

    Args:
        events: by step, a word on what happened after it.
    """
    pandas = need("pandas", "notebooks")
    names = _names(runs)
    losses = {name: runs[name].losses for name in names}
    fig, axes = new_figure()
    for i, (name, loss) in enumerate(losses.items()):
        # the first run is drawn broad, so that one that coincides with it is seen on top
        broad = i == 0 and len(names) > 1
        every = (i * len(loss) // (10 * len(names)), max(1, len(loss) // 10))
        width = {"linewidth": 5, "alpha": 0.45} if broad else {"linewidth": 1.8}
        marks = {"markersize": 5, "markevery": every}
        axes.plot(loss.index, loss, label=name, **series_look(i), **width, **marks)
    for i, (step, word) in enumerate(sorted((events or {}).items())):
        axes.axvline(step, color=BLACK, linestyle=":", linewidth=1)
        side = {"ha": "right", "x": -4} if i % 2 == 0 else {"ha": "left", "x": 4}
        axes.annotate(
            word,
            (step, 0.06),
            xycoords=axes.get_xaxis_transform(),
            xytext=(side["x"], 0),
            textcoords="offset points",
            ha=side["ha"],
        )
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False)
    title(axes, "Training loss", plain_numbers=True)
    axes.xaxis.get_major_locator().set_params(integer=True)
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
        sentence += f"; {_beside(first, list(losses.values())[1:])}"
    words = [f"step {step}, {word}" for step, word in sorted((events or {}).items())]
    marked = f" Marked: {'; '.join(words)}." if words else ""
    return fig, table, f"{sentence}.{marked}"


def _beside(first: "pd.Series", others: "list[pd.Series]") -> str:
    """How far the other runs' losses are from the first's, at steps at which both have one."""
    apart = [(loss - first).abs() for loss in others]
    if any(one.isna().all() for one in apart):
        return "it and another run have a loss at no step in common"
    if any(one.max() for one in apart):
        return (
            f"at no step is another run further from it than {max(one.max() for one in apart):.2g}"
        )
    both = " that both have" if any(one.isna().any() for one in apart) else ""
    return f"the other runs are equal to it at every step{both}"


def plot_throughput(runs: Mapping[str, Run]) -> Picture:
    """Tokens per second, a bar per run: the median after warm-up, 10th to 90th percentile.

    Raises:
        UserError: a run has no step whose speed was measured.
    """
    names = _names(runs)
    measured = compare(runs)
    speed, low, high = (measured[key] for key in ("tokens_per_s", "p10", "p90"))
    if speed.isna().any():
        raise UserError(f"{speed.isna().idxmax()} has no step whose speed was measured")
    fig, axes = new_figure(1.1 + 0.55 * len(names), grid="x")
    colours, hatches = zip(*(part_look(i) for i in range(len(names))))
    axes.barh(
        names,
        speed,
        height=0.62,
        xerr=[(speed - low).clip(lower=0), (high - speed).clip(lower=0)],
        color=colours,
        hatch=hatches,
        edgecolor="white",
        error_kw={"ecolor": BLACK, "capsize": 4, "elinewidth": 1.4},
    )
    for row, (value, end) in enumerate(zip(speed, high)):
        place = max(value, end) + 0.015 * high.max()
        axes.text(place, row, f"{value:,.0f}", va="center")
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.15 * high.max()), xlabel="tokens per second")
    heading = "Throughput: median after warm-up, 10th to 90th percentile"
    title(axes, heading, plain_numbers=True)
    table = measured.rename(
        columns={
            "tokens_per_s": "tokens/s (median)",
            "p10": "10th percentile",
            "p90": "90th percentile",
            "relative": f"relative to {names[0]}",
            "final_loss": "final loss",
        }
    )
    sentence = f"{names[0]} trains {speed.iloc[0]:,.0f} tokens per second"
    for i, name in enumerate(names[1:], start=1):
        sentence += f", {name} {speed.iloc[i] / speed.iloc[0]:.2f} times as many"
    if any(run.summary.get("device") == "cpu" for run in runs.values()):
        sentence += "; on CPU cores this illustrates the method and predicts no GPU"
    return fig, table, sentence + "."


def plot_memory(predicted: "Mapping[str, StateBytes]", runs: Mapping[str, Run]) -> Picture:
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
    bars, rows = {}, {}
    for name in names:
        expected = {state: getattr(predicted[name], state) for state in STATES}
        measured = _fullest(runs[name])
        bars |= {f"{name}\npredicted": expected, f"{name}\nmeasured": measured}
        for state in STATES:
            rows[f"{name}: {state}"] = expected[state], measured[state]
        rows[f"{name}: total"] = sum(expected.values()), sum(measured.values())
    fig = _state_bars(pandas.DataFrame.from_dict(bars, orient="index"))
    columns = ["predicted bytes", "measured bytes"]
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("state")
    table["measured / predicted"] = table["measured bytes"] / table["predicted bytes"]
    worst = (table["measured / predicted"] - 1).abs().max()
    sentence = "Measured and predicted state are equal to the byte"
    if worst > 0:
        sentence = f"Measured and predicted state differ by at most {worst:.2g} of it"
    if len(names) > 1:
        first, last = (rows[f"{name}: total"][1] for name in (names[0], names[-1]))
        sentence += f"; a rank of {names[-1]} holds {last / first:.3f} of what {names[0]} holds"
    return fig, table, sentence + "."


def plot_phases(run: "Run | Mapping[str, float]") -> Picture:
    """Where the wall clock went: phases end to end, a row each, and the share that was training.

    `run` is a finished run, or seconds by phase in their order.
    """
    pandas = need("pandas", "notebooks")
    phases = run if isinstance(run, Mapping) else run.phases["seconds"].drop("total").to_dict()
    seconds = {name: value for name, value in phases.items() if value >= LEAST_S}
    if "train" not in seconds:
        raise UserError(f"no time was spent in the phase 'train'; there is: {list(seconds)}")
    total_s, train_s = sum(seconds.values()), seconds["train"]
    fig, axes = new_figure(0.9 + 0.3 * len(seconds), grid="x")
    began = 0.0
    for row, (name, value) in enumerate(seconds.items()):
        colour, hatch = (VERMILLION, "//") if name == "train" else (BLUE, "")
        axes.barh(row, value, left=began, color=colour, edgecolor="white", hatch=hatch)
        began += value
        axes.text(began + 0.008 * total_s, row, f"{value / total_s:.1%}", va="center")
    name_bars(axes, list(seconds))
    axes.set(xlim=(0, 1.1 * total_s), xlabel="seconds since the launch")
    title(axes, "Where the time went", plain_numbers=True)
    table = pandas.DataFrame({"seconds": {**seconds, "total": total_s}}).rename_axis("phase")
    table["share"] = table["seconds"] / total_s
    sentence = (
        f"Of the {total_s:,.4g} s that the machine is held, train takes "
        f"{train_s:,.3g} s: {train_s / total_s:.1%}."
    )
    return fig, table, sentence


def _names(runs: Mapping[str, Run]) -> list[str]:
    if not runs:
        raise UserError("a plot needs at least one run")
    return list(runs)


def _fullest(run: Run) -> dict[str, int]:
    """The states of the rank that holds most."""
    by_rank = run.summary.get("state_bytes")
    if not by_rank:
        raise UserError(f"{run!r} has no state_bytes in its summary")
    if not isinstance(by_rank, list) or not all(map(_are_states, by_rank)):
        raise UserError(f"{shown(run.path / 'summary.json')} has no list of ranks' state_bytes")
    most = max(by_rank, key=lambda states: sum(states[state] for state in STATES))
    return {state: most[state] for state in STATES}


def _are_states(values: object) -> bool:
    return are_sizes(values) and all(values.get(state) is not None for state in STATES)


def _state_bars(table: "pd.DataFrame") -> "Figure":
    """Bars of bytes by state; every first one (predicted) is hollow."""
    unit, size = unit_of(table.sum(axis=1).max())
    fig, axes = new_figure(1.2 + 0.5 * len(table), grid="x")
    hollow = [row % 2 == 0 for row in range(len(table))]
    looks = list(STATE_LOOKS.values())
    stacked_bars(axes, table / size, looks, hollow, total=f"{{:.3g}} {unit}")
    axes.set_xlabel(unit)
    title(axes, "Training state on the fullest rank", plain_numbers=True)
    return fig
