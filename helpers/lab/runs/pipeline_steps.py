"""Measured steps of pipelines beside the simulator's and the papers' closed forms, as tables.

    table = compare_schedules({"gpipe:8": read_timelines(one), "1f1b:8": read_timelines(other)})

A case is named SCHEDULE:MICROBATCHES, as scripts/measure/schedules.py names it. The simulator gets
the median time of each action of the same step, so what is compared is the rest: that ranks work at
the same time, messages travel meanwhile, and nothing waits without reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.engine.pipeline.schedules import Schedule, make_schedule, predicted_bubble
from helpers.engine.pipeline.simulator import Timeline, measured_times, simulate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Case:
    """One schedule's measured steps, and each of them simulated."""

    schedule: Schedule
    measured: tuple[Timeline, ...]
    simulated: tuple[Timeline, ...]

    @property
    def pair(self) -> tuple[Timeline, Timeline]:
        """The step of median length, measured and simulated."""
        pairs = list(zip(self.measured, self.simulated))
        return sorted(pairs, key=lambda pair: pair[0].makespan_s)[len(pairs) // 2]

    @property
    def formula(self) -> float:
        """The closed form of the bubble, with equal stages, F, I and W."""
        schedule = self.schedule
        stages_a_rank = schedule.stages // schedule.pp
        return predicted_bubble(schedule.name, schedule.pp, schedule.microbatches, stages_a_rank)


def case_of(name: str, steps: Sequence[Timeline]) -> Case:
    """The case called `name` with its measured steps.

    Raises:
        UserError: there are no steps, or the name is no SCHEDULE:MICROBATCHES.
    """
    kind, _, count = name.partition(":")
    if not steps or not count.isdecimal():
        raise UserError(f"a case is steps under a name like 1f1b:8, not {len(steps)} as {name!r}")
    schedule = make_schedule(kind, len(steps[0].spans), int(count))
    simulated = (simulate(schedule, measured_times(step, schedule.stages)) for step in steps)
    return Case(schedule, tuple(steps), tuple(simulated))


def compare_schedules(measured: Mapping[str, Sequence[Timeline]]) -> "pd.DataFrame":
    """A row per case: its step in milliseconds and its bubble, measured, simulated and by formula;
    medians over the steps."""
    pandas = need("pandas", "notebooks")
    rows = {}
    for name, steps in measured.items():
        case = case_of(name, steps)
        measured_ms, simulated_ms = _step_ms(case.measured), _step_ms(case.simulated)
        rows[name] = {
            "step, ms": measured_ms,
            "simulated, ms": simulated_ms,
            "measured / simulated": measured_ms / simulated_ms,
            "bubble": _bubble(case.measured),
            "bubble simulated": _bubble(case.simulated),
            "bubble by formula": case.formula,
        }
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("schedule:micro-batches")


def bubble_table(cases: Iterable[Case]) -> "pd.DataFrame":
    """A row per case of one schedule, by its micro-batches: the bubble by formula, simulated and
    measured with its spread, and the step in milliseconds."""
    pandas = need("pandas", "notebooks")
    rows = {}
    for case in cases:
        low, high = _spread([step.bubble for step in case.measured])
        rows[case.schedule.microbatches] = {
            "formula": case.formula,
            "simulated": _bubble(case.simulated),
            "measured": _bubble(case.measured),
            "10th percentile": low,
            "90th percentile": high,
            "step, ms": _step_ms(case.measured),
        }
    table = pandas.DataFrame.from_dict(rows, orient="index")
    return table.sort_index().rename_axis("micro-batches")


def _step_ms(steps: Sequence[Timeline]) -> float:
    return 1000 * median(step.makespan_s for step in steps)


def _bubble(steps: Sequence[Timeline]) -> float:
    return median(step.bubble for step in steps)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    if len(values) < 2:
        return values[0], values[0]
    deciles = quantiles(values, n=10, method="inclusive")
    return deciles[0], deciles[-1]
