"""A layout's plans: for each way to share the state, the cheapest saver of activations that fits.

Cheap recomputation is tried before full recomputation and host memory: what is dearer than need be
is not tried.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import Cluster
from helpers.planner.memory.components import rank_states
from helpers.planner.memory.peak import Memory, fullest
from helpers.planner.model.training_job import Job
from helpers.planner.search.layouts import ACTIVATIONS, sharded_plans
from helpers.planner.search.planned import Choice
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
    """

    def __init__(self, job: Job, cluster: Cluster) -> None:
        self.job, self.cluster = job, cluster
        self._paces: dict[str, Pace] = {}
        self._too_large: set[tuple[str, bool]] = set()  # savers, with parameters shared
        self.least_s = self.pace(job.plan.activation).least_s

    def pace(self, activation: str) -> Pace:
        """How fast it is when so much is recomputed."""
        if activation not in self._paces:
            job = _with_saver(self.job, activation, False)
            stages = stage_times(job, self.cluster)
            self._paces[activation] = Pace(stages, free_data_s(job, self.cluster, stages))
        return self._paces[activation]

    def cannot_win(self, job: Job, activation: str, limit_s: float) -> bool:
        """Must one of its plans take `limit_s` or longer: for its messages of the data axes, or, if
        so much is recomputed, for computing?"""
        if activation == "none":
            return least_data_s(job, self.cluster) >= limit_s
        return self.pace(activation).least_s >= limit_s

    def memory_if_it_fits(self, job: Job) -> Memory | None:
        """Of the fullest rank of one of its plans. With ZeRO-3 the most sharded are asked first:
        what did not fit then does not with fewer shards."""
        saver, sharded = (job.plan.activation, job.plan.offload), job.plan.zero == 3
        if sharded and saver in self._too_large:
            return None
        memory = fullest(job, self.cluster.memory_bytes)
        if memory.total <= self.cluster.memory_bytes:
            return memory
        if sharded:
            self._too_large.add(saver)
        return None

    def sharded(self) -> Iterator[ParallelPlan]:
        """Its plan with each way to share the state, the most sharded first."""
        yield from reversed(list(sharded_plans(self.job.plan, self.cluster)))


def cheapest_that_fits(
    layout: Layout, plan: ParallelPlan, limit_s: float, ruled_out: Counter[str]
) -> Choice | None:
    """One of the layout's plans with the cheapest saver of activations with which it fits; None if
    it fits with none, or must take `limit_s`. What does not fit is counted in `ruled_out`."""
    whole = replace(layout.job, plan=plan)
    if rank_states(whole, 0).total > layout.cluster.memory_bytes:
        ruled_out[TOO_LARGE] += 1
        return None
    for activation, offload in ACTIVATIONS:
        if layout.cannot_win(whole, activation, limit_s):
            return None
        job = _with_saver(whole, activation, offload)
        memory = layout.memory_if_it_fits(job)
        if memory is not None:
            alone = layout.pace(activation).stages
            time = step_time(job, layout.cluster, exact=False, alone=alone)
            return Choice(job, layout.cluster, memory, time)
        ruled_out[TOO_LARGE] += 1
    return None


def _with_saver(job: Job, activation: str, offload: bool) -> Job:
    if (activation, offload) == (job.plan.activation, job.plan.offload):
        return job
    return replace(job, plan=replace(job.plan, activation=activation, offload=offload))
