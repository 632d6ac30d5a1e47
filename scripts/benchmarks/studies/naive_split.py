"""What a pipeline gains over the naive split, measured and predicted.

In the naive split one stage works at a time, so its actions have a core of their own: their median
seconds, put in the pipeline's order by the simulator, say what the pipeline should take. Where
stages outnumber the cores these are shared; what it would be with a core for each stands beside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.compare import Row
from benchmarks.studies.predicted import timeline
from helpers.commands import markdown
from helpers.engine.pipeline.simulator import Timeline, measured_times, simulate
from helpers.engine.plan import ParallelPlan
from helpers.planner.time.shared_cores import simulate_shared


@dataclass(frozen=True)
class Gain:
    """How many times as fast the pipeline is, from the first forward to the last backward.

    shared: predicted on the cores that there are; free: with a core for each stage.
    """

    stages: int
    naive_s: float
    pipeline_s: float
    shared: float
    free: float

    @property
    def measured(self) -> float:
        return self.naive_s / self.pipeline_s


def gains(rows: Sequence[Row], cores: int) -> list[Gain]:
    """Of each number of stages that ran under both schedules."""
    by_plan = {
        (plan.pp, plan.schedule): row
        for row in rows
        if not row.failure and (plan := ParallelPlan(**row.peer.options)).pp > 1
    }
    stages = sorted({pp for pp, name in by_plan if name == "naive" and (pp, "1f1b") in by_plan})
    return [_gain(by_plan[pp, "naive"], by_plan[pp, "1f1b"], cores) for pp in stages]


def _gain(naive: Row, pipeline: Row, cores: int) -> Gain:
    plan = ParallelPlan(**pipeline.peer.options)
    made = plan.schedule_of(plan.microbatches)
    before = sorted(timelines(naive), key=lambda step: step.makespan_s)
    step = before[len(before) // 2]
    times = measured_times(step, plan.stages)
    return Gain(
        stages=plan.pp,
        naive_s=step.makespan_s,
        pipeline_s=median(found.makespan_s for found in timelines(pipeline)),
        shared=step.makespan_s / simulate_shared(made, times, cores).makespan_s,
        free=step.makespan_s / simulate(made, times).makespan_s,
    )


def timelines(row: Row) -> list[Timeline]:
    """Of the steps that the row's ranks remember."""
    return [timeline(step) for step in zip(*(rank["spans"] for rank in row.memory), strict=True)]


def table(rows: Sequence[Row], cores: int) -> str:
    """The gains as a Markdown table; empty where nothing ran under both schedules."""
    head = ("stages", "naive, s", "1f1b, s", "times as fast", f"predicted on {cores} cores", "off")
    found = [
        (
            one.stages,
            f"{one.naive_s:.2f}",
            f"{one.pipeline_s:.2f}",
            f"{one.measured:.2f}",
            f"{one.shared:.2f}",
            f"{one.measured / one.shared - 1:+.1%}",
            f"{one.free:.2f}",
        )
        for one in gains(rows, cores)
    ]
    return markdown((*head, "predicted with a core for each"), found) if found else ""
