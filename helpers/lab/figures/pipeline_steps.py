"""Measured steps of pipelines beside the simulator's and the papers' closed forms.

    table = compare_schedules({"gpipe:8": read_timelines(one), "1f1b:8": read_timelines(other)})
    fig, table, sentence = plot_bubbles({"1f1b:2": ..., "1f1b:4": ..., "1f1b:8": ...})

A case is named SCHEDULE:MICROBATCHES, as scripts/measure/schedules.py names it. The simulator gets
the median time of each action of the same step, so what is compared is the rest: that ranks work at
the same time, messages travel meanwhile, and nothing waits without reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.engine.pipeline.schedules import Schedule, make_schedule, predicted_bubble
from helpers.engine.pipeline.simulator import Timeline, measured_times, simulate
from helpers.lab.figures.training_plots import BLACK, BLUE, ORANGE, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Plot = tuple["Figure", "pd.DataFrame", str]


@dataclass(frozen=True)
class Case:
    """One schedule's measured steps, and each of them simulated."""

    schedule: Schedule
    measured: tuple[Timeline, ...]
    simulated: tuple[Timeline, ...]

    @property
    def middle(self) -> int:
        """The place of the step of median length."""
        places = sorted(range(len(self.measured)), key=lambda i: self.measured[i].makespan_s)
        return places[len(places) // 2]

    @property
    def pair(self) -> tuple[Timeline, Timeline]:
        """The step of median length, measured and simulated."""
        return self.measured[self.middle], self.simulated[self.middle]

    @property
    def formula(self) -> float:
        """The closed form of the bubble, with equal stages, F, I and W."""
        made = self.schedule
        return predicted_bubble(made.name, made.pp, made.microbatches, made.stages // made.pp)


def case_of(name: str, steps: Sequence[Timeline]) -> Case:
    """The case called `name` with its measured steps.

    Raises:
        UserError: there are no steps, or the name is no SCHEDULE:MICROBATCHES.
    """
    schedule, _, count = name.partition(":")
    if not steps or not count.isdecimal():
        raise UserError(f"a case is steps under a name like 1f1b:8, not {len(steps)} as {name!r}")
    made = make_schedule(schedule, len(steps[0].spans), int(count))
    simulated = (simulate(made, measured_times(step, made.stages)) for step in steps)
    return Case(made, tuple(steps), tuple(simulated))


def compare_schedules(measured: Mapping[str, Sequence[Timeline]]) -> "pd.DataFrame":
    """A row a case: its step in milliseconds and its bubble, measured, simulated and by formula;
    medians over the steps."""
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, steps in measured.items():
        case = case_of(name, steps)
        pairs = zip(case.measured, case.simulated)
        rows[name] = {
            "step, ms": 1000 * _makespan_s(case.measured),
            "simulated, ms": 1000 * _makespan_s(case.simulated),
            "measured / simulated": median(
                took.makespan_s / said.makespan_s for took, said in pairs
            ),
            "bubble": _bubble(case.measured),
            "bubble simulated": _bubble(case.simulated),
            "bubble by formula": case.formula,
        }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("schedule:micro-batches")


def plot_bubbles(measured: Mapping[str, Sequence[Timeline]]) -> Plot:
    """The bubble of one schedule while its micro-batches grow: measured with the 10th to 90th
    percentile of its steps, simulated, and by formula."""
    pandas = need("pandas", "notebooks")
    cases = [case_of(name, steps) for name, steps in measured.items()]
    cases.sort(key=lambda case: case.schedule.microbatches)
    counts = [case.schedule.microbatches for case in cases]
    bubbles = [_bubble(case.measured) for case in cases]
    low, high = zip(*(_spread([step.bubble for step in case.measured]) for case in cases))
    fig, axes = new_figure()
    errors = [
        [middle - one for middle, one in zip(bubbles, low)],
        [one - middle for middle, one in zip(bubbles, high)],
    ]
    formula = [case.formula for case in cases]
    simulated = [_bubble(case.simulated) for case in cases]
    axes.plot(counts, formula, color=BLACK, linestyle="--", label="formula")
    axes.plot(counts, simulated, "s", color=ORANGE, markersize=9, label="simulated")
    style = {"color": BLUE, "markersize": 6, "capsize": 4, "label": "measured"}
    axes.errorbar(counts, bubbles, yerr=errors, fmt="o", **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:.0%}")
    axes.set(xlabel="micro-batches", ylabel="share of the step that is waiting")
    axes.legend(frameon=False)
    axes.set_title(f"Bubble of {cases[0].schedule.name}", loc="left", fontsize=11.5)
    table = pandas.DataFrame(
        {
            "formula": formula,
            "simulated": simulated,
            "measured": bubbles,
            "10th percentile": low,
            "90th percentile": high,
            "step, ms": [1000 * _makespan_s(case.measured) for case in cases],
        },
        index=pandas.Index(counts, name="micro-batches"),
    )
    sentence = (
        f"From {counts[0]} to {counts[-1]} micro-batches the measured bubble goes from "
        f"{bubbles[0]:.1%} to {bubbles[-1]:.1%}, the formula's from {formula[0]:.1%} to "
        f"{formula[-1]:.1%}."
    )
    return fig, table, sentence


def _makespan_s(steps: Sequence[Timeline]) -> float:
    return median(step.makespan_s for step in steps)


def _bubble(steps: Sequence[Timeline]) -> float:
    return median(step.bubble for step in steps)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    if len(values) < 2:
        return values[0], values[0]
    deciles = quantiles(values, n=10, method="inclusive")
    return deciles[0], deciles[-1]
