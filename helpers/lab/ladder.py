"""The ladder of sharded data parallelism: what each rung should hold and send, and what it did.

report = json.loads((run.path / "ladder.json").read_text())       # scripts/measure_ladder.py
fig, table, sentence = plot_ladder(compare_rungs(report, shape))
"""

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, need
from helpers.lab.figures import BLUE, ORANGE, Plot
from helpers.planner.cost import Shape, parameters, state_bytes

if TYPE_CHECKING:
    import pandas as pd

FP32 = 4  # bytes of an element
MB = 1e6


def sent_bytes(shape: Shape, plan: Mapping[str, Any]) -> float:
    """Bytes that a rank sends in one step to share gradients and parameters, all in float32.

    With n ranks and a message of N bytes an all-reduce sends 2·N·(n-1)/n from each rank, an
    all-gather or reduce-scatter N·(n-1)/n. DDP and ZeRO-1 sum once a step, ZeRO-2 and 3 in each
    micro-batch. ZeRO-3 gathers each block for its forward and for its backward; embedding and head,
    which both ends of a micro-batch need, once.

    Source: arXiv 1910.02054 (ZeRO), section 7.
    """
    count = parameters(shape)
    blocks = shape.layers * shape.block_parameters
    copies, shards, m = plan["dp_replicate"], plan["dp_shard"], plan["microbatches"]
    share, among = (shards - 1) / shards, 2 * (copies - 1) / copies
    if shards == 1:
        return FP32 * count * among
    stage = plan["zero_stage"]
    scatters = m if stage > 1 else 1
    gathered = m * (2 * blocks + count - blocks) if stage == 3 else count
    return FP32 * (share * (scatters * count + gathered) + among * scatters * count / shards)


def counted_bytes(message_bytes: Mapping[str, int], plan: Mapping[str, Any]) -> float:
    """What a rank sent, from the whole sizes of the messages that it took part in."""
    copies, shards = plan["dp_replicate"], plan["dp_shard"]
    share = (shards - 1) / shards
    among = 2 * (copies - 1) / copies
    scattered = message_bytes.get("reduce-scatter", 0) + message_bytes.get("all-gather", 0)
    return share * scattered + among * message_bytes.get("all-reduce", 0)


def compare_rungs(report: Mapping[str, Any], shape: Shape) -> "pd.DataFrame":
    """A row a rung: state and traffic of a rank, predicted and measured, and the median step.

    Raises:
        UserError: the report has a rung in another precision than float32, whose bytes differ.
    """
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, found in report.items():
        plan = found["plan"]
        if plan["precision"] != "fp32":
            raise UserError(f"{name!r} is not in float32: leave it out of this comparison")
        stage = plan["zero_stage"] if plan["dp_shard"] > 1 else 0
        said = state_bytes(parameters(shape), dp_shard=plan["dp_shard"], zero_stage=stage)
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

    from helpers.lab.figures import STYLE, WIDTH

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
