"""A pipeline's measured step against the simulator, given what each action took.

The times of forward and backward are the medians of the same run, so what is tested is the rest:
that ranks compute at the same time, messages travel meanwhile, and nothing waits without reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.compare import Row
from helpers.commands import markdown
from helpers.engine.pipeline.schedules import Action
from helpers.engine.pipeline.simulator import Span, Timeline, measured_times, simulate
from helpers.engine.plan import ParallelPlan


@dataclass(frozen=True)
class Prediction:
    """Of one layout: seconds from the first forward to the last backward, and the bubble."""

    measured_s: float
    simulated_s: float
    measured_bubble: float
    simulated_bubble: float

    @property
    def off(self) -> float:
        return self.measured_s / self.simulated_s - 1


def predict(row: Row) -> Prediction | None:
    """None where the row is no pipeline of this engine."""
    if row.failure or not row.memory or "spans" not in row.memory[0]:
        return None
    plan = ParallelPlan(**{k: v for k, v in row.peer.options.items() if k != "gloo"})
    per_rank = [rank["spans"] for rank in row.memory]
    found = [_one(plan, timeline(step)) for step in zip(*per_rank, strict=True)]
    return found[sorted(range(len(found)), key=lambda i: found[i].measured_s)[len(found) // 2]]


def timeline(step: Sequence[Sequence[Sequence]]) -> Timeline:
    """Of the spans of each rank in one step."""
    spans = tuple(tuple(Span(Action(*a), start, end) for *a, start, end in rank) for rank in step)
    return Timeline(spans, peak_bytes=())


def _one(plan: ParallelPlan, measured: Timeline) -> Prediction:
    times = measured_times(measured, plan.stages)
    simulated = simulate(plan.schedule_of(plan.microbatches), times)
    return Prediction(measured.makespan_s, simulated.makespan_s, measured.bubble, simulated.bubble)


def table(rows: Sequence[Row]) -> str:
    """Measured and simulated as a Markdown table; empty without pipelines."""
    head = ("", "measured, s", "simulated, s", "off", "bubble measured", "bubble simulated")
    found = [
        (
            row.peer.title.strip("*"),
            f"{one.measured_s:.2f}",
            f"{one.simulated_s:.2f}",
            f"{one.off:+.1%}",
            f"{one.measured_bubble:.1%}",
            f"{one.simulated_bubble:.1%}",
        )
        for row in rows
        if (one := predict(row)) is not None
    ]
    return markdown(head, found) if found else ""
