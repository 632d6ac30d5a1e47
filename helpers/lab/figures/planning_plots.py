"""The plots of plans on paper. Each returns the figure, the table of its numbers, and a sentence.

fig, table, sentence = plot_fit({"ZeRO-3": estimate(...), "tp=8": estimate(...)})
show_figure(fig, alt, table=table, sentence=sentence)

All numbers are the planner's or a source's; nothing in them was measured here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.engine.plan import ParallelPlan
from helpers.lab.figures.charts import lines, powers_of_two, stacked_bars
from helpers.lab.figures.style import BLACK, Picture, new_figure, title
from helpers.lab.figures.tables import listed, table_of
from helpers.planner.hardware.catalog import GIB
from helpers.planner.memory.activations import activation_bytes
from helpers.planner.model.training_job import make_job
from helpers.planner.scaling import efficiencies, out_of_node_bytes
from helpers.planner.search.planned import Choice
from helpers.planner.shape.shape import Shape

if TYPE_CHECKING:
    import pandas as pd

NEAR_LINEAR = 90  # % of the first point's speed a machine
LIMIT = {"color": BLACK, "linestyle": "--", "linewidth": 1.4}  # what a GPU has


def plot_fit(choices: Mapping[str, Choice]) -> Picture:
    """What the fullest GPU holds, a bar a plan, against what it has."""
    rows = {
        name: {
            **{part: value / GIB for part, value in choice.memory.by_category.items()},
            "libraries": (choice.memory.total - choice.memory.allocated) / GIB,
        }
        for name, choice in choices.items()
    }
    table = table_of(rows, "GiB on the fullest GPU")
    limit = next(iter(choices.values())).cluster.memory_bytes / GIB
    fig, axes = new_figure(1.4 + 0.42 * len(rows), grid="x")
    stacked_bars(axes, table)
    axes.axvline(limit, **LIMIT)
    axes.set_xlabel("GiB")
    title(axes, f"What the fullest GPU holds; dashed: the {limit:.0f} GiB that it has")
    table["all"] = table.sum(axis=1)
    table["step, s"] = [choice.time.total_s for choice in choices.values()]
    fits = [name for name, total in table["all"].items() if total <= limit]
    sentence = f"Of these plans {listed(fits)} fit{'s' if len(fits) == 1 else ''} {limit:.0f} GiB."
    return fig, table, sentence if fits else f"None of these plans fits {limit:.0f} GiB."


def plot_scaling(
    predicted: Mapping[str, Mapping[int, float]],
    published: Mapping[str, Mapping[int, float]],
) -> Picture:
    """Speed a GPU against the number of GPUs, as a share of what it is with the fewest.

    Args:
        predicted: tokens/s by number of GPUs, a line each.
        published: speeds in the same form, drawn without a line.
    """
    pandas = need("pandas", "notebooks")
    speeds = {**predicted, **published}
    table = 100 * pandas.DataFrame({name: efficiencies(rates) for name, rates in speeds.items()})
    table = table.sort_index().rename_axis("% of linear, by GPUs")
    fig, axes = new_figure(3.8)
    lines(axes, table[list(predicted)])
    for name in published:
        axes.plot(table[name], "*", color=BLACK, markersize=10, label=name)
    powers_of_two(axes, list(table.index), rotation=30)
    axes.set(xlabel="GPUs", ylabel=f"speed of a GPU, % of that at {table.index[0]}", ylim=(0, 108))
    axes.legend(frameon=False, loc="lower left")
    title(axes, "Where near-linear ends")
    sentence = " ".join(_end_of_linear(name, table[name].dropna()) for name in predicted)
    return fig, table, sentence


def _end_of_linear(name: str, shares: "pd.Series") -> str:
    below = shares.index[shares < NEAR_LINEAR]
    if below.empty:
        return f"{name}: above 90 % as far as was asked, {shares.index.max():,} GPUs."
    return f"{name}: below 90 % from {below.min():,} GPUs on."


def plot_out_of_node(choices: Mapping[str, Choice]) -> Picture:
    """What a node sends to other nodes in a step, a bar a plan, by forward and backward; beside it
    in the table, what of it the arithmetic does not hide."""
    rows = {}
    for name, choice in choices.items():
        sent = out_of_node_bytes(choice.job, choice.cluster.devices_per_node)
        rows[name] = {
            "forward": sent.get("forward", 0) / 1e9,
            "backward": (sent.get("backward", 0) + sent.get("last", 0)) / 1e9,
            "after the backward": sent.get("step", 0) / 1e9,
        }
    table = table_of(rows, "GB out of a node")
    fig, axes = new_figure(1.3 + 0.42 * len(rows), grid="x")
    stacked_bars(axes, table.loc[:, table.any()])
    axes.set_xlabel("GB per step that a node sends to other nodes")
    title(axes, "What leaves a node")
    table["waiting for messages, ms"] = [1000 * choice.time.data_s for choice in choices.values()]
    table["step, ms"] = [1000 * choice.time.total_s for choice in choices.values()]
    table["fits"] = [choice.fits for choice in choices.values()]
    slow, fast = table["step, ms"].idxmax(), table["step, ms"].idxmin()
    ratio = table.loc[slow, "step, ms"] / table.loc[fast, "step, ms"]
    sentence = f"The fastest step is that of {fast}; {slow} takes {ratio:.2f} times as long."
    return fig, table, sentence


def plot_sequences(
    shape: Shape, lengths: Sequence[int], tps: Sequence[int], limit_bytes: int, activation: str
) -> Picture:
    """Activations of one sample against its length, a line a tensor degree, with sequence
    parallelism; and the GPU's memory.

    Args:
        lengths: of a sample, in tokens.
        tps: tensor parallel degrees.
        limit_bytes: of memory that the GPU has.
        activation: as in ParallelPlan.
    """
    pandas = need("pandas", "notebooks")
    gib = {
        f"tp={tp}": {length: _activations_gib(shape, length, tp, activation) for length in lengths}
        for tp in tps
    }
    table = pandas.DataFrame(gib).rename_axis("GiB kept, by tokens of a sample")
    limit = limit_bytes / GIB
    fig, axes = new_figure(3.6)
    lines(axes, table)
    axes.legend(frameon=False)
    axes.axhline(limit, **LIMIT)
    axes.text(lengths[0], limit, f"the GPU has {limit:.0f} GiB", va="bottom")
    axes.set_yscale("log", base=2)
    powers_of_two(axes, list(lengths), rotation=30)
    axes.set(xlabel="tokens of a sample", ylabel="GiB")
    axes.yaxis.set_major_formatter("{x:,.4g}")
    title(axes, "Activations of one sample")
    fitting = {name: table.index[table[name] <= limit] for name in table}
    words = [f"{max(found):,} tokens with {name}" for name, found in fitting.items() if len(found)]
    sentence = f"Activations alone leave room for {listed(words)}."
    return fig, table, sentence if words else "Activations alone leave room for no sample."


def _activations_gib(shape: Shape, length: int, tp: int, activation: str) -> float:
    plan = ParallelPlan(tp=tp, sequence_parallel=tp > 1, activation=activation, precision="bf16")
    longer = replace(shape, longest=0)  # as if it had positions for all of these lengths
    return activation_bytes(make_job(longer, plan, 1, length), 0) / GIB
