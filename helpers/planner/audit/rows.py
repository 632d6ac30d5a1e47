"""Every published row, predicted with the constants as they are and without those of its source.

for row in rows(): row.run, row.fitted, row.unseen            # errors, as shares
in_words(rows())                                              # their errors in a line
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def lines() -> Iterator[str]:
    """Every row by source, then the sums, as text."""
    for source, found in grouped(rows(), lambda row: row.run.source).items():
        yield f"\n{title(source)}"
        yield f"{'measured s':>12} {'ours s':>10} {'fitted':>8} {'unseen':>8}  run"
        for row in found:
            run = row.run
            yield (
                f"{run.measured_s:12.3f} {row.fitted_s:10.3f} {percent(row.fitted):>8} "
                f"{percent(row.unseen):>8}  {run.name}, batch {run.batch} x {run.seq_len}"
            )
        yield in_words(found)
    for generation, found in grouped(rows(), lambda row: row.generation).items():
        yield f"\n{generation}: {in_words(found)}"
    yield f"\nall: {in_words(rows())}"


def in_words(found: Sequence[Row]) -> str:
    """Errors of some rows in a line."""
    words = []
    for name in ("fitted", "unseen"):
        errors = Errors.of([getattr(row, name) for row in found])
        words.append(
            f"{name} mean {percent(errors.size)[1:]}, bias {percent(errors.bias)}, "
            f"worst {percent(errors.worst)}"
        )
    return f"{len(found)} rows: {'; '.join(words)}"


def percent(share: float) -> str:
    """A share with its sign."""
    return f"{100 * share:+.1f} %"
