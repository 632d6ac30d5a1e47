"""What a sweep may try: for each flag a list of values, or a range.

    {"lr": ("log", 1e-4, 1e-2), "warmup": (0, 10), "optimizer": ["adamw", "adamw8bit"]}

A range of two whole numbers is of whole numbers; `log` before it spreads it by its logarithm.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import UserError, is_number
from helpers.lab.launch.flags import check_names

LOG = "log"
LARGE = 1e300
SPREADS = (LOG, "float", "int", "choice")  # words before a range on a command line


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

    def points(self, count: int) -> list[float]:
        """So many values, evenly spread, ends included; fewer where whole numbers fall together."""
        return list(dict.fromkeys(self.at(index / (count - 1)) for index in range(count)))


Space = dict[str, Range | list[Any]]


def read_space(space: Any) -> Space:
    """The space, checked.

    Raises:
        UserError: it is empty, or a flag's values are neither a list nor a range.
    """
    if not isinstance(space, Mapping) or not space:
        raise UserError('a space is of flags and their values: {"lr": ("log", 1e-4, 1e-2)}')
    check_names(space)
    return {name: _one(name, values) for name, values in space.items()}


def _one(name: str, values: Any) -> Range | list[Any]:
    if isinstance(values, list):
        plain = all(isinstance(one, bool | int | float | str) for one in values)
        plain = plain and not any(one != one for one in values)  # a nan is equal to no trial's
        if not values or not plain or len(set(map(repr, values))) < len(values):
            raise UserError(f"{name}: a list of different numbers, words or True and False")
        return values
    if not isinstance(values, tuple):
        raise UserError(f"{name}={values!r}: give a list of values, or a range as (low, high)")
    log, ends = values[:1] == (LOG,), values[1:] if values[:1] == (LOG,) else values
    if len(ends) != 2 or not all(map(is_number, ends)) or not all(abs(end) < LARGE for end in ends):
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
    ranges = [values for values in space.values() if isinstance(values, Range)]
    room = trials // math.prod(len(one) for one in space.values() if isinstance(one, list))
    each = _root(room, len(ranges)) if ranges else 1
    if room < 1 or (ranges and each < 2):
        raise UserError(f"{trials} trials are too few for a grid of {', '.join(space)}: give more")
    lists = [one.points(each) if isinstance(one, Range) else one for one in space.values()]
    return [dict(zip(space, values)) for values in itertools.product(*lists)]


def _root(number: int, degree: int) -> int:
    """The largest whole number whose power is at most `number`."""
    root = max(1, round(number ** (1 / degree)))
    return root if root**degree <= number else root - 1


def distributions(optuna: Any, space: Space) -> dict[str, Any]:
    """The space as Optuna knows it."""
    kinds = optuna.distributions
    found = {}
    for name, values in space.items():
        if isinstance(values, list):
            found[name] = kinds.CategoricalDistribution(values)
        elif values.whole:
            found[name] = kinds.IntDistribution(int(values.low), int(values.high), log=values.log)
        else:
            found[name] = kinds.FloatDistribution(values.low, values.high, log=values.log)
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
    ends: Sequence[Any] = [_value(word) for word in parts if word not in SPREADS]
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
