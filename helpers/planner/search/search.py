"""Which layout: every valid plan of a model on a cluster, the ones that fit, the best of them.

    found = search_plans(load_config("gpt3-175b"), make_cluster("p4de.24xlarge", 128), 1536, 2048)
    found.best.plan, found.best.time.total_s
    print(explain(found))                         # explain.py
    found.command("gpt3-175b")                    # how to start it

Layouts are tried in the order of what they would take if memory and the data axes were free, so the
search may stop as soon as no layout that is left can win. For each way of sharding the state, what
saves activations is tried from the cheapest on: cheap recomputation, full recomputation, host
memory; what is dearer than need be is not.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.engine.errors import UserError
from helpers.planner.hardware.cluster import Cluster
from helpers.planner.memory.components import states_bytes
from helpers.planner.memory.peak import fullest
from helpers.planner.model.training_job import Job
from helpers.planner.search.layouts import ACTIVATIONS, sharded_plans, unsharded_plans
from helpers.planner.search.planned import Choice, launch_command
from helpers.planner.search.request import Question, check, job_under, nothing_fits, too_late
from helpers.planner.shape import Shape, model_shape
from helpers.planner.time.data_messages import least_data_s
from helpers.planner.time.step_time import StageTime, free_data_s, stage_times, step_time

KEPT = 4  # choices that a search returns
SIMULATED = 4_000  # actions of a schedule up to which the simulator's time replaces the formula's


@dataclass(frozen=True)
class Found:
    """The answer.

    choices: the best plans, best first, of different layouts.
    tried: plans whose memory was looked at.
    ruled_out: layouts by the reason why they are none, and plans that do not fit.
    """

    question: Question
    choices: tuple[Choice, ...]
    tried: int
    ruled_out: dict[str, int]

    @property
    def best(self) -> Choice:
        return self.choices[0]

    def command(self, model: str, script: str = "scripts/train.py") -> str:
        """The line that starts the best plan, to be run on every node."""
        return launch_command(self.best, model, script)


def search_plans(
    model: Any,
    clusters: Cluster | Sequence[Cluster],
    batch: int,
    seq_len: int,
    precision: str = "bf16",
    by: str = "time",
    tokens: float | None = None,
    deadline_s: float | None = None,
) -> Found:
    """The best plans of a model on one of some clusters.

    Args:
        model: a transformers configuration, or a Shape.
        batch: samples of a step, over all ranks.
        by: `time`, `cost`, or `cost under a deadline`.
        tokens: to train on; needed with a deadline.
        deadline_s: for all of them.

    Raises:
        UserError: one line: the question makes no sense, no plan fits anywhere and what would, or
            the deadline cannot be met and what it would take.
    """
    shape = model if isinstance(model, Shape) else model_shape(model)
    several = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    question = Question(shape, several, batch, seq_len, precision, by, tokens, deadline_s)
    check(question)
    ruled_out: Counter[str] = Counter()
    tried, choices = 0, []
    for cluster in several:
        found, count = _on_cluster(question, cluster, ruled_out)
        choices += found
        tried += count
    if not choices:
        raise UserError(nothing_fits(question))
    choices = [_exact(choice) for choice in choices]
    if deadline_s is not None:
        in_time = [c for c in choices if tokens / c.tokens_per_s <= deadline_s]
        if not in_time:
            raise UserError(too_late(question, choices))
        choices = in_time
    choices.sort(key=lambda choice: _value(choice, by))
    return Found(question, tuple(choices[:KEPT]), tried, dict(ruled_out))


def _on_cluster(
    question: Question, cluster: Cluster, ruled_out: Counter[str]
) -> tuple[list[Choice], int]:
    """The best choice of each of the best layouts of one cluster, and how many were looked at."""
    ideals = []
    every = unsharded_plans(question.shape, cluster, question.batch, question.precision, ruled_out)
    for plan in every:
        job = job_under(question, plan)
        alone = stage_times(job, cluster)
        ideals.append((free_data_s(job, cluster, alone), job, alone))
    ideals.sort(key=lambda ideal: ideal[0])
    best: dict[tuple[int, int, int], Choice] = {}
    tried = 0
    for ideal_s, job, alone in ideals:
        worst_kept = _nth_s(best.values(), KEPT)
        if worst_kept is not None and ideal_s >= worst_kept:
            break
        key = (job.plan.tp, job.plan.pp, cluster.nodes)
        limit_s = best[key].time.total_s if key in best else math.inf
        if worst_kept is not None:
            limit_s = min(limit_s, worst_kept)
        if ideal_s >= limit_s:
            continue
        for candidate in _savers(job, cluster, ruled_out, limit_s, alone):
            tried += 1
            if candidate is not None and candidate.time.total_s < limit_s:
                best[key], limit_s = candidate, candidate.time.total_s
    return list(best.values()), tried


def _savers(
    job: Job, cluster: Cluster, ruled_out: Counter[str], limit_s: float, alone: list[StageTime]
) -> Iterator[Choice | None]:
    """The layout with each way of sharding, and the cheapest saver of activations with which it
    fits; None for each that does not, and nothing that must take longer than `limit_s`. `alone` is
    the layout's stages without a saver."""
    stages = {job.plan.activation: alone}
    least_s = {job.plan.activation: 0.0}
    too_large: set[tuple[str, bool]] = set()  # for ZeRO-3, of which the most sharded comes first
    for plan in reversed(list(sharded_plans(job.plan, cluster))):
        whole = replace(job, plan=plan)
        if sum(states_bytes(whole, 0)) > cluster.memory_bytes:
            ruled_out["does not fit"] += 1
            yield None
            continue  # no saver of activations helps
        if least_data_s(whole, cluster) >= limit_s:
            continue
        for saver in ACTIVATIONS:
            activation = saver[0]
            if activation not in stages:
                saving = _with_saver(job, activation, False)
                stages[activation] = stage_times(saving, cluster)
                least_s[activation] = free_data_s(saving, cluster, stages[activation])
            if least_s[activation] >= limit_s:
                break
            if plan.zero != 3 or saver not in too_large:
                candidate = _with_saver(whole, *saver)
                memory = fullest(candidate, cluster.memory_bytes)
                if memory.total <= cluster.memory_bytes:
                    time = step_time(candidate, cluster, exact=False, alone=stages[activation])
                    limit_s = min(limit_s, time.total_s)
                    yield Choice(candidate, cluster, memory, time)
                    break
            if plan.zero == 3:
                too_large.add(saver)
            ruled_out["does not fit"] += 1
            yield None


def _with_saver(job: Job, activation: str, offload: bool) -> Job:
    if (activation, offload) == (job.plan.activation, job.plan.offload):
        return job
    return replace(job, plan=replace(job.plan, activation=activation, offload=offload))


def _exact(choice: Choice) -> Choice:
    """With the simulator's time, where the schedule is short enough to walk."""
    job = choice.job
    actions = 2 * job.plan.stages * job.microbatches
    if job.plan.pp == 1 or actions > SIMULATED:
        return choice
    return replace(choice, time=step_time(job, choice.cluster))


def _value(choice: Choice, by: str) -> float:
    return choice.time.total_s / choice.job.batch if by == "time" else choice.usd_per_token


def _nth_s(choices: Iterable[Choice], n: int) -> float | None:
    times = sorted(choice.time.total_s for choice in choices)
    return times[n - 1] if len(times) >= n else None
