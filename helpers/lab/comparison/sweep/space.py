"""What a sweep may try: for each flag a list of values, or a range.

    {"lr": ("log", 1e-4, 1e-2), "warmup": (0, 10), "optimizer": ["adamw", "adamw8bit"]}

A range of two whole numbers is of whole numbers; `log` before it spreads it by its logarithm.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import UserError

LOG = "log"
MOST_POINTS = 100_000


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, both included; `whole`: of whole numbers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> float:
        """The value at a share of the way from `low` to `high`."""
        if self.log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        value = min(max(value, self.low), self.high)  # rounding may leave the range
        return round(value) if self.whole else value

    def share_of(self, value: float) -> float:
        """The share of the way at which a value lies."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def points(self, count: int) -> list[float]:
        """So many values, evenly spread, ends included; fewer where whole numbers fall together."""
        shares = [0.5] if count == 1 else [index / (count - 1) for index in range(count)]
        return list(dict.fromkeys(map(self.at, shares)))

    def untried(self, share: float, tried: Sequence[Any]) -> float:
        """The value at a share of the way."""
        return self.at(share)


@dataclass(frozen=True)
class Steps:
    """Numbers in their order: a line on which only some places can be tried."""

    values: tuple[float, ...]

    def share_of(self, value: float) -> float:
        return self.values.index(value) / (len(self.values) - 1)

    def untried(self, share: float, tried: Sequence[Any]) -> float:
        """The value nearest to a share of the way that has not been tried; any where all have."""
        far = {value: abs(self.share_of(value) - share) for value in self.values}
        left = [value for value in self.values if value not in tried] or list(self.values)
        return min(left, key=far.__getitem__)


Line = Range | Steps
Space = dict[str, Range | list[Any]]
LEAST_STEPS = 5  # numbers of a list, from which on it is a line


def line_of(values: Range | list[Any]) -> Line | None:
    """A flag's values as a line along which a valley can be searched; None where they are none."""
    if isinstance(values, Range):
        return None if values.whole else values
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
    return Steps(tuple(sorted(values))) if numbers and len(values) >= LEAST_STEPS else None


def read_space(space: Any) -> Space:
    """The space, checked.

    Raises:
        UserError: it is empty, or a flag's values are neither a list nor a range.
    """
    if not isinstance(space, Mapping) or not space:
        raise UserError('a space is of flags and their values: {"lr": ("log", 1e-4, 1e-2)}')
    return {str(name): _one(str(name), values) for name, values in space.items()}


def _one(name: str, values: Any) -> Range | list[Any]:
    if isinstance(values, Range):
        return values
    if isinstance(values, list):
        plain = all(isinstance(one, bool | int | float | str) for one in values)
        if not values or not plain or len(set(map(repr, values))) < len(values):
            raise UserError(f"{name}: a list of different numbers, words or True and False")
        return values
    if not isinstance(values, tuple):
        raise UserError(f"{name}={values!r}: give a list of values, or a range as (low, high)")
    log, ends = values[:1] == (LOG,), values[1:] if values[:1] == (LOG,) else values
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in ends)
    if len(ends) != 2 or not numbers or not all(map(math.isfinite, ends)):
        raise UserError(f'{name}={values!r}: a range is (low, high), or ("log", low, high)')
    low, high = ends
    if not low < high or (log and low <= 0):
        least = " and above 0" if log else ""
        raise UserError(f"{name}={values!r}: low must be below high{least}")
    return Range(low, high, log, all(isinstance(one, int) for one in ends))


def grid(space: Space, trials: int) -> list[dict[str, Any]]:
    """All combinations, of each range as many points as `trials` leaves room for.

    Raises:
        UserError: there is no room for two points of every range.
    """
    lists = {name: values for name, values in space.items() if isinstance(values, list)}
    ranges = {name: values for name, values in space.items() if isinstance(values, Range)}
    room = trials // math.prod(map(len, lists.values()))
    each = _root(room, len(ranges)) if ranges else 1
    if room < 1 or (ranges and each < 2):
        raise UserError(f"{trials} trials are too few for a grid of {', '.join(space)}: give more")
    points = {**lists, **{name: values.points(each) for name, values in ranges.items()}}
    names = list(space)
    return [dict(zip(names, each)) for each in itertools.product(*(points[n] for n in names))]


def _root(number: int, degree: int) -> int:
    """The largest whole number whose power is at most `number`."""
    root = max(1, round(number ** (1 / degree)))
    return root if root**degree <= number else root - 1


def suggest(trial: Any, space: Space) -> dict[str, Any]:
    """What Optuna's trial is to try."""
    found = {}
    for name, values in space.items():
        if isinstance(values, list):
            found[name] = trial.suggest_categorical(name, values)
        elif values.whole:
            found[name] = trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
        else:
            found[name] = trial.suggest_float(name, values.low, values.high, log=values.log)
    return found


def from_words(text: str) -> tuple[str, Any]:
    """A flag and its values of a command line: lr=log:1e-4:1e-2, warmup=0:10, optimizer=a,b.

    Raises:
        UserError: it is none of these.
    """
    name, equals, words = text.partition("=")
    if not equals or not name or not words:
        raise UserError(f"--space {text}: write lr=log:1e-4:1e-2, warmup=0:10 or optimizer=a,b")
    name = name.strip().lstrip("-").replace("-", "_")
    parts = words.split(":")
    if parts[0] == "choice":
        return name, [_value(word) for word in parts[1:]]
    if len(parts) == 1:
        return name, [_value(word) for word in words.split(",")]
    ends: Sequence[Any] = [_value(word) for word in parts if word not in (LOG, "float", "int")]
    if "float" in parts:
        ends = [float(end) if isinstance(end, int) else end for end in ends]
    return name, (LOG, *ends) if LOG in parts else tuple(ends)


def _value(word: str) -> Any:
    if word in ("True", "False"):
        return word == "True"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
