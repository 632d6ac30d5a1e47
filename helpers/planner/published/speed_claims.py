"""What "34 % faster" says. The same pair of runs can be called 53 % or 34 % faster:

    rate   samples per second against samples per second     1861.9 / 1216.2 - 1    = 53 %
    time   seconds saved, of the first one's seconds         1 - 852.9 / 1305.7     = 35 %

Both say that the second is 1.53 times as fast, so that is what is compared here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from helpers.engine.errors import UserError, is_number

MEANINGS = {"rate": "more in the same time", "time": "less time for the same"}


@dataclass(frozen=True)
class Claim:
    """So many percent faster.

    meaning: `rate` or `time`.
    of: on what clock, such as "training" or "billed".
    """

    percent: float
    meaning: str
    of: str

    def __post_init__(self) -> None:
        if self.meaning not in MEANINGS:
            raise UserError(f"meaning is one of {', '.join(MEANINGS)}, not {self.meaning!r}")
        if not is_number(self.percent):
            raise UserError(f"percent must be a number, not {self.percent!r:.40}")
        least, most = (-100, float("inf")) if self.meaning == "rate" else (-float("inf"), 100)
        if not least < self.percent < most:
            raise UserError(f"{self.percent} % {MEANINGS[self.meaning]} cannot be")

    def __str__(self) -> str:
        return f"{self.percent:.3g} % {MEANINGS[self.meaning]} ({self.of})"

    @property
    def ratio(self) -> float:
        """How many times as fast: 1.5 does in two hours what the other does in three."""
        if self.meaning == "rate":
            return 1 + self.percent / 100
        return 1 / (1 - self.percent / 100)

    def as_(self, meaning: str) -> "Claim":
        """The same claim in the other meaning, on its clock."""
        return claim(self.ratio, meaning, self.of)


def claim(ratio: float, meaning: str, of: str) -> Claim:
    """ "`ratio` times as fast" in percent of one meaning."""
    if not is_number(ratio) or not ratio > 0:
        raise UserError(f"a ratio of speeds is a number above 0, not {ratio!r:.40}")
    return Claim(100 * (ratio - 1 if meaning == "rate" else 1 - 1 / ratio), meaning, of)


def side_by_side(claims: Mapping[str, Claim]) -> dict[str, float]:
    """The claims' ratios, by name, where they mean the same.

    Raises:
        UserError: they mean different things by "faster", or are of different clocks, or there are
            none.
    """
    if not claims:
        raise UserError("give claims by name, as {'the chart': claim(1.5, 'rate', 'training')}")
    first_name, first = next(iter(claims.items()))
    for name, other in claims.items():
        if other.meaning != first.meaning:
            raise UserError(
                f'two meanings of "faster": {first_name} is {first}, {name} is {other}; in one '
                f"meaning they are {first} and {other.as_(first.meaning)}"
            )
        if other.of != first.of:
            raise UserError(
                f"two clocks: {first_name} is {first}, {name} is {other}; compare on one"
            )
    return {name: each.ratio for name, each in claims.items()}
