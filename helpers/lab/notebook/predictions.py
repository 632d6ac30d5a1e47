"""What the reader predicted, beside what was measured.

guesses = Predictions()
guesses.enter("messages of a step", my_messages, default=16)      # None: the default is taken
...
guesses.measured("messages of a step", 10)
guesses.show()                                                     # how well did I guess
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.figures.display import show_table, show_text
from helpers.lab.figures.tables import number, table_of


@dataclass
class Guess:
    """A number that was said before, and the one that was found; entered: by the reader."""

    said: float
    entered: bool
    found: float | None = None

    @property
    def times(self) -> float | None:
        """What was said over what was found; None where that says nothing."""
        return self.said / self.found if self.found else None

    @property
    def words(self) -> str:
        """How far off it is."""
        if self.found is None:
            return "not measured"
        if number(self.said) == number(self.found):  # as they are shown
            return "right"
        if self.times is None or self.times <= 0:
            return f"off by {number(abs(self.said - self.found))}"
        if 0.5 <= self.times <= 2:
            way = "too much" if self.times > 1 else "too little"
            return f"{abs(self.times - 1):.0%} {way}"
        if self.times > 1:
            return f"{self.times:.3g} times what was found"
        return f"what was found is {1 / self.times:.3g} times as large"


class Predictions:
    """The predictions of a notebook, by what they are of."""

    def __init__(self) -> None:
        self.guesses: dict[str, Guess] = {}

    def enter(self, what: str, said: Any, default: float) -> None:
        """Keep a prediction; entering it again takes the place of the first.

        Args:
            said: the reader's number, or None for the default, with which a run without a reader
                goes through.

        Raises:
            UserError: it is not a finite number.
        """
        self.guesses[what] = Guess(
            _finite(what, default if said is None else said), said is not None
        )

    def measured(self, what: str, found: Any) -> None:
        """Keep what was found, and show it beside what was said.

        Raises:
            UserError: nothing was predicted under that name, or no finite number was found.
        """
        if what not in self.guesses:
            known = ", ".join(self.guesses) or "none"
            raise UserError(f"there is no prediction of {what!r}; there are: {known}")
        guess = self.guesses[what]
        guess.found = _finite(what, found)
        who = "you said" if guess.entered else "no number was entered, so the default stands:"
        show_text(
            f"{_upper(what)}: {who} {number(guess.said)}, and it is {number(guess.found)}: "
            f"{guess.words}."
        )

    def show(self, save_to: str | Path | None = None) -> None:
        """Show all of them in one table."""
        rows = {
            what: {
                "said": guess.said,
                "by": "you" if guess.entered else "default",
                "found": guess.found,
                "error": guess.words,
            }
            for what, guess in self.guesses.items()
        }
        entered = sum(guess.entered for guess in self.guesses.values())
        words = f"{entered} of {len(rows)} were entered; enter the others above, and run again."
        everything = entered == len(rows)
        table = table_of(rows, "prediction")
        show_table(table, "How well did I guess?", None if everything else words, save_to)

    @property
    def record(self) -> dict[str, dict[str, Any]]:
        """For record.json."""
        return {
            what: {"said": guess.said, "entered": guess.entered, "found": guess.found}
            for what, guess in self.guesses.items()
        }


def _finite(what: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{what}: a number is wanted, not {value!r:.40}") from None
    if not math.isfinite(found):
        raise UserError(f"{what}: a finite number is wanted, not {found}")
    return int(found) if found.is_integer() else found


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]
