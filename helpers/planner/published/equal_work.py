"""What runs did, and how their work differs: two speeds can be compared over equal work alone.

check_equal("native", Work(...), "compiled", Work(...), at="samples")

at        must be equal besides data, seed, model and batch
samples   samples, steps, tokens
steps     samples, steps, tokens
loss      nothing: how much of them it took is the result
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from helpers.engine.errors import UserError

AT = ("samples", "steps", "loss")
AMOUNTS = ("samples", "steps", "tokens")
# settings that decide what is learnt; of all others one may differ, the one that is compared
CONTENT = ("data", "seed", "model", "parameters", "task", "seq_len", "layers", "hidden", "heads")


@dataclass(frozen=True)
class Work:
    """What a run worked through, counted from its steps, and what it was told to do.

    samples, steps, tokens: that were trained on; tokens is None where they were not counted.
    batch: samples of a step; the last of an epoch may have fewer.
    asked: samples that its epochs hold; None where it was to take a number of steps.
    settings: what else was chosen, by name.
    """

    samples: int
    steps: int
    batch: int
    tokens: int | None = None
    asked: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dropped(self) -> int | None:
        """Samples of its epochs that were left out, as by `drop_last`; None where unknown."""
        return None if self.asked is None else self.asked - self.samples


class Difference(NamedTuple):
    """One thing that is not the same in two runs."""

    name: str
    first: Any
    other: Any

    def __str__(self) -> str:
        first, other = map(_shown, (self.first, self.other))
        if first == other:  # in so few digits
            first, other = self.first, self.other
        return f"{self.name} {first} against {other}"


def differences(first: Work, other: Work) -> list[Difference]:
    """All that differs, amounts first. A setting that one of them does not name is None there."""
    names = (*AMOUNTS, "batch", "dropped")
    pairs = [(name, getattr(first, name), getattr(other, name)) for name in names]
    keys = [*first.settings, *(key for key in other.settings if key not in first.settings)]
    pairs += [(key, first.settings.get(key), other.settings.get(key)) for key in keys]
    unknown = (*AMOUNTS, "dropped")  # a count that only one of them has says nothing
    return [
        Difference(name, a, b)
        for name, a, b in pairs
        if a != b and not (name in unknown and None in (a, b))
    ]


def check_equal(
    name: str, first: Work, other_name: str, other: Work, at: str, allow: Collection[str] = ()
) -> list[Difference]:
    """See that two runs did the same work and differ in one thing at most.

    Args:
        at: what is equal where their times are compared: samples, steps or loss.
        allow: names of differences that are meant, such as "batch".

    Returns:
        What differs, allowed or not judged at this `at`.

    Raises:
        UserError: one line with all that differs and may not.
    """
    if at not in AT:
        raise UserError(f"at is one of {', '.join(AT)}, not {at!r}")
    every = differences(first, other)
    free = [d for d in every if d.name not in allow and not (at == "loss" and d.name in AMOUNTS)]
    work = [d for d in free if d.name in (*AMOUNTS, "batch", "dropped", *CONTENT)]
    if work:
        raise UserError(
            f"{name} and {other_name} did not do the same work: {_listed(work)}; make it equal, "
            "or name what may differ in the argument `allow`"
        )
    if len(free) > 1:
        raise UserError(
            f"{name} and {other_name} differ in {len(free)} things: {_listed(free)}; change one, "
            "or name the others in the argument `allow`"
        )
    return every


def _listed(different: list[Difference]) -> str:
    return ", ".join(map(str, different))


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
