"""Which layout: every valid plan of a model on a cluster, the ones that fit, the best of them.

    result = search_plans(load_config("gpt3-175b"), make_cluster("p4de.24xlarge", 128), 1536, 2048)
    result.best.plan, result.best.time.total_s
    print(explain(result))                        # explain.py
    result.command("gpt3-175b")                   # how to start it

Layouts are tried in the order of what they would take if memory and the data axes were free, so
that most of them are seen to be slower than what was found before, and left out. What may win goes
through the schedule simulator.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.adapters import Adapters
from helpers.planner.search.cheapest_saver import TOO_LARGE, Layout, cheapest_that_fits
from helpers.planner.search.layouts import savers, unsharded_plans
from helpers.planner.search.planned import Choice, launch_command
from helpers.planner.search.request import Question, check, job_under, nothing_fits, too_late
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.parameters import experts_of
from helpers.planner.time.stage_time import StageTime
from helpers.planner.time.step_time import step_time

KEPT = 4  # choices that a search returns
SIMULATED = 100_000  # actions of a schedule up to which all of it is walked in the end
NEAR = 0.96  # of the closed forms' time: what the simulator finds is never less


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The answer.

    choices: the best plans, best first, of different layouts.
    tried: plans whose memory was looked at.
    ruled_out: layouts by the reason why they are none, and plans that do not fit.
    """

    question: Question
    choices: tuple[Choice, ...]
    tried: int
    ruled_out: dict[str, int]

    def __repr__(self) -> str:
        return f"SearchResult(best of {self.tried} plans: {self.best!r}; explain(...) says why)"

    @property
    def best(self) -> Choice:
        return self.choices[0]

    def command(self, model: str, script: str | None = None) -> str:
        """The torchrun line of the best plan, to be run on every node. A script takes the place of
        the module helpers.train."""
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
    adapters: Adapters | None = None,
    optimizer: str = "adamw",
) -> SearchResult:
    """The best plans of a model on one of some clusters.

    Args:
        model: a transformers configuration, or a Shape.
        batch: samples of a step, over all ranks.
        by: `time`, `cost`, or `cost under a deadline`.
        tokens: to train on; needed with a deadline.
        deadline_s: for all of them.
        adapters, optimizer: as estimate's.

    Raises:
        UserError: one line: the question makes no sense, no plan fits anywhere and what would, or
            the deadline cannot be met and what it would take.
    """
    shape = model_shape(model)
    several = tuple(clusters) if isinstance(clusters, (list, tuple)) else (clusters,)
    work = batch, seq_len, precision, by, tokens, deadline_s, adapters, optimizer
    question = Question(shape, several, *work)
    check(question)
    ruled_out: Counter[str] = Counter()
    fitted, choices = 0, []
    for cluster in dict.fromkeys(several):  # one that is given twice is one
        best, count = _on_cluster(question, cluster, ruled_out)
        choices += best.choices
        fitted += count
    if not choices:
        raise UserError(nothing_fits(question, _found))
    choices = _in_time(question, [_exact(choice) for choice in choices])
    choices.sort(key=lambda choice: _value(choice, by))
    tried = fitted + ruled_out[TOO_LARGE]
    return SearchResult(question, tuple(choices[:KEPT]), tried, dict(ruled_out))


class Best:
    """The fastest plan of each layout, which is its degrees of tp, pp and cp, on one cluster, by
    the closed forms; and the fastest of all, by the simulator."""

    def __init__(self) -> None:
        self._by_layout: dict[tuple[int, int, int], Choice] = {}
        self._slowest_kept_s = math.inf
        self._fastest: Choice | None = None

    @property
    def choices(self) -> list[Choice]:
        """The fastest of all, and the fastest of each other layout."""
        by_layout = dict(self._by_layout)
        if self._fastest is not None:
            by_layout[_degrees(self._fastest.plan)] = self._fastest
        return list(by_layout.values())

    def limit_s(self, plan: ParallelPlan) -> float:
        """What a plan must not take by the closed forms, to be the fastest of its layout and of the
        KEPT fastest, or the fastest of all by the simulator."""
        of_layout = self._by_layout.get(_degrees(plan))
        kept_s = min(self._slowest_kept_s, of_layout.time.total_s if of_layout else math.inf)
        return max(kept_s, self._fastest.time.total_s / NEAR if self._fastest else math.inf)

    def offer(self, choice: Choice, alone: list[StageTime] | None) -> None:
        """Take a choice if it is good enough.

        Args:
            alone: the times of its stages, where they are known.
        """
        plan, total_s = choice.plan, choice.time.total_s
        known = self._by_layout.get(_degrees(plan))
        if known is None or total_s < known.time.total_s:
            self._by_layout[_degrees(plan)] = choice
            times = sorted(one.time.total_s for one in self._by_layout.values())
            if len(times) >= KEPT:
                self._slowest_kept_s = times[KEPT - 1]
        if self._fastest is None or total_s * NEAR < self._fastest.time.total_s:
            near = replace(choice, time=step_time(choice.job, choice.cluster, "near", alone))
            if self._fastest is None or near.time.total_s < self._fastest.time.total_s:
                self._fastest = near


def _degrees(plan: ParallelPlan) -> tuple[int, int, int]:
    return plan.tp, plan.pp, plan.cp


def _on_cluster(question: Question, cluster: Cluster, ruled_out: Counter[str]) -> tuple[Best, int]:
    """The best plans on one cluster, and how many there were that fitted and could win."""
    best, fitted = Best(), 0
    for layout in _layouts(question, cluster, ruled_out):
        limit_s = best.limit_s(layout.job.plan)
        if layout.least_s >= limit_s:
            continue
        quickest: Choice | None = None
        for plan in layout.sharded():
            choice = cheapest_that_fits(layout, plan, limit_s, ruled_out)
            if choice is not None:
                fitted += 1
                quickest, limit_s = choice, choice.time.total_s
        if quickest is not None:
            best.offer(quickest, layout.stages_of(quickest.plan))
    return best, fitted


def _found(question: Question, cluster: Cluster) -> list[Choice]:
    """The best plans on a cluster; none where none fits."""
    return [_exact(choice) for choice in _on_cluster(question, cluster, Counter())[0].choices]


def _layouts(question: Question, cluster: Cluster, ruled_out: Counter[str]) -> list[Layout]:
    """All of them, from the one that would be the fastest with free memory and data axes on."""
    work = question.batch, question.seq_len, question.precision
    plans = unsharded_plans(question.shape, cluster, *work, ruled_out, question.adapters)
    possible = savers(question.shape, question.adapters, ruled_out)
    experts = 0 if question.adapters else experts_of(question.shape)
    layouts = [
        Layout(job_under(question, plan, cluster), cluster, possible, experts) for plan in plans
    ]
    return sorted(layouts, key=lambda layout: layout.least_s)


def _exact(choice: Choice) -> Choice:
    """With all of its schedule walked, where that is not too long."""
    job = choice.job
    actions = 2 * job.plan.stages * job.microbatches
    if job.plan.pp == 1 or actions > SIMULATED:
        return choice
    return replace(choice, time=step_time(job, choice.cluster))


def _in_time(question: Question, choices: list[Choice]) -> list[Choice]:
    """Those that meet the question's deadline, if it has one."""
    if question.deadline_s is None:
        return choices
    in_time = [c for c in choices if question.tokens / c.tokens_per_s <= question.deadline_s]
    if not in_time:
        raise UserError(too_late(question, choices, _found))
    return in_time


def _value(choice: Choice, by: str) -> float:
    return choice.time.total_s / choice.job.batch if by == "time" else choice.usd_per_token
