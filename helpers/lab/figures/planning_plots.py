"""The plots of plans on paper. Each returns the figure, the table of its numbers, and a sentence.

fig, table, sentence = plot_fit({"ZeRO-3": estimate(...), "tp=8": estimate(...)})
show_figure(fig, alt, table=table, sentence=sentence)

All numbers are the planner's or a source's; nothing in them was measured here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.engine.plan import ParallelPlan
from helpers.lab.figures.training_plots import (
    BLACK,
    COLOURS,
    HATCHES,
    LINES,
    MARKERS,
    Plot,
    new_figure,
)
from helpers.planner.memory.components import activation_bytes
from helpers.planner.model.training_job import make_job
from helpers.planner.search.search import Choice
from helpers.planner.shape import Shape
from helpers.planner.time.scaling import efficiencies, out_of_node_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIB = 2**30
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "transients")
NEAR_LINEAR = 0.9  # of the first point's speed a machine


def plot_fit(choices: Mapping[str, Choice]) -> Plot:
    """What the fullest GPU holds, a bar a plan, against what it has."""
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, choice in choices.items():
        held = {part: getattr(choice.memory, part) / GIB for part in CATEGORIES}
        rest = (choice.memory.total - choice.memory.allocated) / GIB
        rows[name] = {**held, "libraries": rest}
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("GiB on the fullest GPU")
    has = next(iter(choices.values())).cluster.memory_bytes / GIB
    fig, axes = new_figure(1.4 + 0.42 * len(rows), grid="x")
    _stacks(axes, table)
    axes.axvline(has, color=BLACK, linestyle="--", linewidth=1.4)
    axes.text(has, -0.55, f" the GPU has {has:.0f}", va="bottom", size=9.5)
    axes.set_xlabel("GiB")
    fig.legend(loc="outside lower center", ncols=4, frameon=False)
    table["all"] = table.sum(axis=1)
    table["step, s"] = [choice.time.total_s for choice in choices.values()]
    fits = [name for name, total in table["all"].items() if total <= has]
    sentence = f"Of these plans {_and(fits)} fit{'s' if len(fits) == 1 else ''} {has:.0f} GiB."
    return fig, table, sentence if fits else f"None of these plans fits {has:.0f} GiB."


def plot_scaling(
    lines: Mapping[str, Mapping[int, float]],
    points: Mapping[str, Mapping[int, float]],
) -> Plot:
    """Speed a GPU against the number of GPUs, as a share of what it is with the fewest.

    Args:
        lines: tokens/s by number of GPUs, a predicted line each.
        points: published speeds in the same form, drawn without a line.
    """
    pandas = need("pandas", "notebooks")
    shares = {name: efficiencies(rates) for name, rates in {**lines, **points}.items()}
    fig, axes = new_figure(3.8)
    for i, (name, found) in enumerate(shares.items()):
        axes.plot(
            list(found),
            [100 * share for share in found.values()],
            color=COLOURS[i % 7] if name in lines else BLACK,
            linestyle=LINES[i % 7] if name in lines else "none",
            marker=MARKERS[i % 7] if name in lines else "*",
            markersize=6 if name in lines else 10,
            label=name,
        )
    counts = sorted({count for found in shares.values() for count in found})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts], rotation=30)
    axes.minorticks_off()
    axes.set(xlabel="GPUs", ylabel=f"speed of a GPU, % of that at {counts[0]}", ylim=(0, 108))
    axes.legend(frameon=False, loc="lower left")
    _title(axes, "Where near-linear ends")
    table = pandas.DataFrame(
        {name: {count: 100 * share for count, share in s.items()} for name, s in shares.items()}
    )
    table = table.sort_index().rename_axis("% of linear, by GPUs")
    return fig, table, " ".join(_ends(name, shares[name]) for name in lines)


def _ends(name: str, shares: Mapping[int, float]) -> str:
    good = [count for count, share in sorted(shares.items()) if share >= NEAR_LINEAR]
    if len(good) == len(shares):
        return f"{name}: above 90 % as far as was asked, {max(shares):,} GPUs."
    stop = min(count for count, share in shares.items() if share < NEAR_LINEAR)
    return f"{name}: below 90 % from {stop:,} GPUs on."


def plot_out_of_node(choices: Mapping[str, Choice]) -> Plot:
    """What a node sends to other nodes in a step, a bar a plan, by forward and backward; beside it
    in the table, what of it the arithmetic does not hide."""
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, choice in choices.items():
        sent = out_of_node_bytes(choice.job, choice.cluster.devices_per_node)
        rows[name] = {
            "forward": sent.get("forward", 0) / 1e9,
            "backward": (sent.get("backward", 0) + sent.get("last", 0)) / 1e9,
            "after it": sent.get("step", 0) / 1e9,
        }
    table = pandas.DataFrame.from_dict(rows, orient="index").rename_axis("GB out of a node")
    fig, axes = new_figure(1.3 + 0.42 * len(rows), grid="x")
    _stacks(axes, table.loc[:, table.any()])
    axes.set_xlabel("GB a step that a node sends to other nodes")
    fig.legend(loc="outside lower center", ncols=3, frameon=False)
    table["waiting for it, ms"] = [1000 * choice.time.data_s for choice in choices.values()]
    table["step, ms"] = [1000 * choice.time.total_s for choice in choices.values()]
    table["fits"] = [c.memory.total <= c.cluster.memory_bytes for c in choices.values()]
    slow, fast = table["step, ms"].idxmax(), table["step, ms"].idxmin()
    ratio = table.loc[slow, "step, ms"] / table.loc[fast, "step, ms"]
    return (
        fig,
        table,
        f"The fastest step is that of {fast}; {slow} takes {ratio:.2f} times as long.",
    )


def plot_sequences(
    shape: Shape, lengths: Sequence[int], tps: Sequence[int], limit_bytes: int, activation: str
) -> Plot:
    """Activations of one sample against its length, a line a tensor degree, with sequence
    parallelism; and the GPU's memory."""
    pandas = need("pandas", "notebooks")

    def kept(length: int, tp: int) -> float:
        plan = ParallelPlan(
            tp=tp, sequence_parallel=tp > 1, activation=activation, precision="bf16"
        )
        return activation_bytes(make_job(shape, plan, 1, length), 0) / GIB

    table = pandas.DataFrame(
        {f"tp={tp}": {length: kept(length, tp) for length in lengths} for tp in tps}
    ).rename_axis("GiB kept, by tokens of a sample")
    fig, axes = new_figure(3.6)
    for i, name in enumerate(table):
        look = {"color": COLOURS[i], "linestyle": LINES[i], "marker": MARKERS[i]}
        axes.plot(table.index, table[name], label=name, **look)
    axes.axhline(limit_bytes / GIB, color=BLACK, linestyle="--", linewidth=1.4)
    axes.text(lengths[0], limit_bytes / GIB, f"the GPU has {limit_bytes / GIB:.0f}", va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(list(lengths), [f"{length:,}" for length in lengths], rotation=30)
    axes.set(xlabel="tokens of a sample", ylabel="GiB")
    axes.yaxis.set_major_formatter("{x:,.4g}")
    axes.legend(frameon=False)
    _title(axes, "Activations of one sample")
    reach = {name: _longest(table[name], limit_bytes / GIB) for name in table}
    words = [f"{length:,} tokens with {name}" for name, length in reach.items() if length]
    return fig, table, f"Activations alone leave room for {_and(words)}."


def _longest(kept: Mapping[int, float], limit: float) -> int:
    return max((length for length, gib in kept.items() if gib <= limit), default=0)


def _stacks(axes: "Axes", table: "object") -> None:
    """A row of stacked bars a row of the table, in the colours and hatches of its columns."""
    left = [0.0] * len(table)
    for i, column in enumerate(table):
        look = {"color": COLOURS[i % 7], "hatch": HATCHES[i % 7], "edgecolor": "white"}
        axes.barh(range(len(table)), table[column], left=left, height=0.62, label=column, **look)
        left = [begin + width for begin, width in zip(left, table[column])]
    for row, end in enumerate(left):
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        place = end + 0.012 * max(left)
        axes.text(place, row, f"{end:,.3g}", va="center", size=9.5, bbox=behind)
    axes.set_yticks(range(len(table)), list(table.index))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.13 * max(left))


def _title(axes: "Axes", text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11.5)


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
