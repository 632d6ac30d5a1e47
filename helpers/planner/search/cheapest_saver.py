"""A layout's plans: for each way to share the state, the cheapest saver of activations that fits.

Where nothing need be saved nothing else is tried.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.devices import Cluster
from helpers.planner.memory.categories import Memory
from helpers.planner.memory.peak import fullest
from helpers.planner.memory.states import rank_states
from helpers.planner.model.training_job import Job
from helpers.planner.search.layouts import ACTIVATIONS, sharded_plans
from helpers.planner.search.planned import Choice, fits
from helpers.planner.time.overlapped_messages import least_data_s
from helpers.planner.time.stage_time import StageTime, stage_times
from helpers.planner.time.step_time import free_data_s, step_time

TOO_LARGE = "does not fit"


class Pace(NamedTuple):
    """How fast a layout is when some is recomputed.

    stages: their times without messages of the data axes.
    least_s: seconds of a step if memory and the data axes were free.
    """

    stages: list[StageTime]
    least_s: float


class Layout:
    """Degrees and a pipeline, without a saver of memory, and what is known of it so far.

    job: with the state whole on each data rank and nothing recomputed.
    savers: of activations, that it can have.
    experts: of a layer, which data ranks may deal out.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        savers: Sequence[tuple[str, bool]] = ACTIVATIONS,
        experts: int = 0,
    ) -> None:
        self.job, self.cluster, self.savers, self.experts = job, cluster, savers, experts
        self._paces: dict[tuple[str, bool], Pace] = {}
        self._too_large: set[tuple[str, bool]] = set()  # savers, with parameters shared
        self.least_s = self.pace(job.plan.activation, job.plan.offload).least_s

    def pace(self, activation: str, offload: bool) -> Pace:
        """How fast it is with this saver of activations."""
        if (activation, offload) not in self._paces:
            job = _with_saver(self.job, activation, offload)
            stages = stage_times(job, self.cluster)
            self._paces[activation, offload] = Pace(stages, free_data_s(job, self.cluster, stages))
        return self._paces[activation, offload]

    def stages_of(self, plan: ParallelPlan) -> list[StageTime]:
        """The times of the stages of one of its plans."""
        return self.pace(plan.activation, plan.offload).stages

    def memory_if_it_fits(self, job: Job) -> Memory | None:
        """Of the fullest rank of one of its plans. With ZeRO-3 the most sharded are asked first:
        what did not fit then does not with fewer shards; but for those that deal experts out, who
        have more tokens the more they are."""
        saver = job.plan.activation, job.plan.offload
        sharded = job.plan.zero == 3 and job.plan.ep == 1
        if sharded and saver in self._too_large:
            return None
        memory = fullest(job, self.cluster.memory_bytes, self.cluster.context_bytes)
        if fits(memory, self.cluster):
            return memory
        if sharded:
            self._too_large.add(saver)
        return None

    def sharded(self) -> Iterator[ParallelPlan]:
        """Its plan with each way to share the state, the most sharded first."""
        yield from reversed(list(sharded_plans(self.job.plan, self.cluster, self.experts)))


def cheapest_that_fits(
    layout: Layout, plan: ParallelPlan, limit_s: float, ruled_out: Counter[str]
) -> Choice | None:
    """One of the layout's plans with the saver of activations with which it is the fastest of those
    that fit; None if it fits with none, or must take `limit_s`. What does not fit is counted in
    `ruled_out`."""
    whole = replace(layout.job, plan=plan)
    if plan.ep > 1:
        whole = layout.job.under(plan)
    if rank_states(whole, 0).total > layout.cluster.memory_bytes:
        ruled_out[TOO_LARGE] += 1
        return None
    if least_data_s(whole, layout.cluster) >= limit_s:
        return None
    best: Choice | None = None
    for activation, offload in layout.savers:
        if layout.pace(activation, offload).least_s >= limit_s:
            continue
        job = _with_saver(whole, activation, offload)
        memory = layout.memory_if_it_fits(job)
        if memory is None:
            ruled_out[TOO_LARGE] += 1
            continue
        time = step_time(job, layout.cluster, "quick", layout.stages_of(job.plan))
        if time.total_s < limit_s:
            best, limit_s = Choice(job, layout.cluster, memory, time), time.total_s
        if (activation, offload) == ACTIVATIONS[0]:
            break  # all others take as long at least
    return best


def _with_saver(job: Job, activation: str, offload: bool) -> Job:
    if (activation, offload) == (job.plan.activation, job.plan.offload):
        return job
    return replace(job, plan=replace(job.plan, activation=activation, offload=offload))
