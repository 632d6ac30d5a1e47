"""The plot of a pipeline's bubbles, measured beside simulated and by the papers' closed form.

fig, table, sentence = plot_bubbles({"1f1b:2": ..., "1f1b:4": ..., "1f1b:8": ...})
show_figure(fig, alt="The bubble of 1F1B by micro-batches", table=table, sentence=sentence)
"""

from collections.abc import Mapping, Sequence

from helpers.engine.pipeline.simulator import Timeline
from helpers.lab.figures.charts import powers_of_two
from helpers.lab.figures.style import BLACK, BLUE, ORANGE, Picture, new_figure, title
from helpers.lab.runs.pipeline_steps import bubble_table, case_of


def plot_bubbles(measured: Mapping[str, Sequence[Timeline]]) -> Picture:
    """The bubble of one schedule while its micro-batches grow: measured with the 10th to 90th
    percentile of its steps, simulated, and by formula."""
    cases = [case_of(name, steps) for name, steps in measured.items()]
    table = bubble_table(cases)
    counts, bubbles, formula = table.index.tolist(), table["measured"], table["formula"]
    spread = [bubbles - table["10th percentile"], table["90th percentile"] - bubbles]
    spread = [side.clip(lower=0) for side in spread]  # of equal steps it may round to below
    fig, axes = new_figure()
    axes.plot(counts, formula, color=BLACK, linestyle="--", label="formula")
    axes.plot(counts, table["simulated"], "s", color=ORANGE, markersize=9, label="simulated")
    marks = {"color": BLUE, "markersize": 6, "capsize": 4, "label": "measured"}
    axes.errorbar(counts, bubbles, yerr=spread, fmt="o", **marks)
    powers_of_two(axes, counts)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    axes.set(xlabel="micro-batches", ylabel="share of the step that is waiting")
    axes.legend(frameon=False)
    title(axes, f"Bubble of {cases[0].schedule.name}")
    sentence = (
        f"From {counts[0]} to {counts[-1]} micro-batches the measured bubble goes from "
        f"{bubbles.iloc[0]:.1%} to {bubbles.iloc[-1]:.1%}, the formula's from "
        f"{formula.iloc[0]:.1%} to {formula.iloc[-1]:.1%}."
    )
    return fig, table, sentence
