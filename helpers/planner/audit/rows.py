"""Every published row, predicted with the constants as they are and without those of its source.

for row in rows(): row.run, row.fitted, row.unseen            # errors, as shares
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import TypeVar

from helpers.planner.audit.constants import left_out, predicted_s
from helpers.planner.published.runs import Run, all_runs, cluster_of, sources

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A published run, and what is predicted: with the constants as they are, to which it belongs
    where `is_fitted` says so, and unseen, with those fitted without its source."""

    run: Run
    fitted_s: float
    unseen_s: float

    @property
    def fitted(self) -> float:
        """How much more than measured was predicted, as a share."""
        return error(self.fitted_s, self.run.measured_s)

    @property
    def unseen(self) -> float:
        """The same, unseen."""
        return error(self.unseen_s, self.run.measured_s)

    @property
    def generation(self) -> str:
        return cluster_of(self.run).generation


def error(predicted: float, measured: float) -> float:
    """How much more than measured was predicted, as a share."""
    return predicted / measured - 1


@cache
def rows() -> tuple[Row, ...]:
    """All that is predicted, by the closed forms of the schedules."""
    return tuple(
        Row(run, predicted_s(run), predicted_s(run, left_out(run.source))) for run in all_runs()
    )


@dataclass(frozen=True)
class Errors:
    """Of some rows: how many, the mean of absolute errors, their mean, and the worst."""

    count: int
    size: float
    bias: float
    worst: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Errors":
        return cls(len(errors), mean(map(abs, errors)), mean(errors), max(errors, key=abs))


def grouped(every: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Rows, or measured peaks, by a key, in order of appearance."""
    groups: dict[str, list[T]] = defaultdict(list)
    for row in every:
        groups[key(row)].append(row)
    return dict(groups)


def title(source: str) -> str:
    """What a source is called."""
    known = sources().get(source)
    return f"{known.by}: {known.title}" if known else f"NVIDIA: Megatron-LM on A100, {source}"


def percent(share: float) -> str:
    """A share with its sign."""
    return f"{100 * share:+.1f} %"
