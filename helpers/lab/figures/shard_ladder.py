"""The ladder of sharded data parallelism: what each rung should hold and send, and what it did.

report = json.loads((run.path / "ladder.json").read_text())       # scripts/measure/zero_stages.py
fig, table, sentence = plot_ladder(compare_rungs(report, shape))
"""

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.engine.plan import ParallelPlan
from helpers.lab.figures.training_plots import BLUE, ORANGE, Plot
from helpers.planner.cost import Shape, parameters, state_bytes
from helpers.planner.model.training_job import make_job
from helpers.planner.time.messages import SENT, data_messages

if TYPE_CHECKING:
    import pandas as pd

MB = 1e6


def sent_bytes(shape: Shape, plan: ParallelPlan) -> float:
    """What the planner says that a rank sends in a step to share gradients and parameters."""
    job = make_job(shape, plan, batch=plan.dp * plan.microbatches, seq_len=1)
    return sum(message.sent_bytes for message in data_messages(job, rank=0))


def counted_bytes(message_bytes: Mapping[str, int], plan: ParallelPlan) -> float:
    """What a rank sent, from the whole sizes of the messages that it took part in: all-reduces are
    over dp_replicate, the others over dp_shard."""
    return sum(
        size * SENT[kind](plan.dp_replicate if kind == "all_reduce" else plan.dp_shard)
        for kind, size in message_bytes.items()
    )


def compare_rungs(report: Mapping[str, Any], shape: Shape) -> "pd.DataFrame":
    """A row a rung: state and traffic of a rank, predicted and measured, and the median step.

    Raises:
        UserError: the report has a rung in another precision than float32, whose bytes differ.
    """
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, found in report.items():
        plan = ParallelPlan.from_dict(found["plan"])
        if plan.precision != "fp32":
            raise UserError(f"{name!r} is not in float32: leave it out of this comparison")
        said = state_bytes(parameters(shape), dp_shard=plan.dp_shard, zero_stage=plan.zero)
        held = max(sum(state.values()) for state in found["state_bytes"])
        rows[name] = {
            "state, predicted MB": said.total / MB,
            "state, measured MB": held / MB,
            "sent a step, predicted MB": sent_bytes(shape, plan) / MB,
            "sent a step, measured MB": counted_bytes(found["message_bytes"], plan) / MB,
            "step, ms": 1000 * median(found["step_s"]),
        }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("rung")


def plot_ladder(table: "pd.DataFrame") -> Plot:
    """State, traffic and time, side by side, a row a rung; predictions are outlines."""
    matplotlib = need("matplotlib", "notebooks")
    from matplotlib.figure import Figure

    from helpers.lab.figures.training_plots import STYLE, WIDTH

    panels = (
        ("state, {} MB", "state of a rank, MB"),
        ("sent a step, {} MB", "a rank sends in a step, MB"),
        ("step, ms", "a step, ms"),
    )
    with matplotlib.rc_context({**STYLE, "axes.grid": True, "axes.grid.axis": "x"}):
        fig = Figure(
            figsize=(WIDTH, 1.3 + 0.4 * len(table)), layout="constrained", facecolor="white"
        )
        axes = fig.subplots(1, len(panels), sharey=True)
        places = range(len(table))
        for one, (column, title) in zip(axes, panels):
            measured = table[column.format("measured")]
            one.barh(places, measured, height=0.55, color=BLUE, label="measured")
            if "{}" in column:
                predicted = table[column.format("predicted")]
                style = {"fill": False, "edgecolor": ORANGE, "linewidth": 2, "linestyle": "--"}
                one.barh(places, predicted, height=0.8, label="predicted", **style)
            for place, value in zip(places, measured):
                one.text(value, place, f" {value:,.0f}", va="center")
            one.set_xlim(0, 1.35 * measured.max())
            one.set_title(title, loc="left", fontsize=10.5)
        axes[0].set_yticks(places, list(table.index))
        axes[0].invert_yaxis()
        handles = axes[0].get_legend_handles_labels()
        fig.legend(*handles, loc="outside lower center", ncols=2, frameon=False)
    first, last = table.iloc[0], table.loc["ZeRO-3"] if "ZeRO-3" in table.index else table.iloc[-1]
    less = last["state, measured MB"] / first["state, measured MB"]
    more = last["sent a step, measured MB"] / first["sent a step, measured MB"]
    sentence = (
        f"{last.name} holds {less:.2f} of the state of {first.name} and sends {more:.2f} times as "
        f"much."
    )
    return fig, table, sentence
