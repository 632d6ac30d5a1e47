"""Is the faster of two layouts said to be the faster?

    groups = by_question(rows())      # of the same model, machine and length, on as many ranks
    order(groups).share               # of pairs that are said in the right order
    regret(groups)                    # what the pick would have cost, over the best of each group

Pairs are of one source, so that one program and one machine is compared with itself.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean
from typing import NamedTuple

from helpers.planner.audit.rows import Row

APART = 0.10  # measured, from which on a pair counts


class Timed(NamedTuple):
    """A layout's seconds for the same work."""

    measured_s: float
    predicted_s: float


@dataclass(frozen=True)
class Order:
    """Pairs that differ enough, and how many of them are said in the right order."""

    pairs: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.pairs if self.pairs else 1.0


def question_of(row: Row) -> Hashable:
    """What a row answers: rows with the same are layouts of the same work on as many ranks."""
    run, plan = row.run, row.run.parallel_plan
    size = (run.model, run.layers, run.hidden, run.heads)
    return (run.source, run.date, size, run.machine, plan.world_size, run.seq_len, run.program)


def by_question(rows: Iterable[Row]) -> list[list[Timed]]:
    """Layouts in groups: seconds of a sample, for batches differ a little."""
    groups: dict[Hashable, list[Timed]] = defaultdict(list)
    for row in rows:
        batch = row.run.batch
        timed = Timed(row.run.measured_s / batch, row.unseen_s / batch)
        groups[question_of(row)].append(timed)
    return [group for group in groups.values() if len(group) > 1]


def order(groups: Iterable[Sequence[Timed]]) -> Order:
    """Of all pairs within groups that differ enough, how many are in the right order."""
    counted = right = 0
    for group in groups:
        for one, other in combinations(group, 2):
            slow, fast = max(one, other), min(one, other)
            if slow.measured_s >= (1 + APART) * fast.measured_s:
                counted += 1
                right += slow.predicted_s > fast.predicted_s
    return Order(counted, right)


@dataclass(frozen=True)
class Regret:
    """Seconds of the pick over those of the best, of each group."""

    groups: int
    mean: float
    worst: float


def regret(groups: Sequence[Sequence[Timed]]) -> Regret:
    """What following the prediction costs."""
    ratios = [
        min(group, key=lambda one: one.predicted_s).measured_s / min(group).measured_s
        for group in groups
    ]
    return Regret(len(ratios), mean(ratios), max(ratios))
