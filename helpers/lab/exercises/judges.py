"""What judges have in common: a function is called on cases, numbers are held against others.

A judge says what it saw and never the answer. known_mistakes.csv has what it recognises of wrong
numbers, by how far off they are.
"""

import math
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from helpers.engine.errors import named_reason
from helpers.tables import read_table

HERE = Path(__file__).parent
# what the reader's code may raise, to be shown to them: a script's sys.exit is no end of a notebook
READERS_ERRORS = (Exception, SystemExit)


@dataclass(frozen=True)
class Result:
    """`done`: there is an answer to judge. `words`: what was seen, without the answer."""

    right: bool = False
    words: str = ""
    done: bool = True


@dataclass(frozen=True)
class Expected:
    """The number that an answer should have.

    tolerance: relative.
    also: another number that is right, counted in another way.
    """

    number: float
    tolerance: float = 0.01
    also: float | None = None


@dataclass(frozen=True)
class Mistake:
    """A known mistake: `times` what is right, a whole number, a fraction or a decimal.

    number: which of an exercise's numbers it is about, where there are several.
    """

    exercise: str
    times: str
    words: str
    number: str = ""

    def __post_init__(self) -> None:
        Fraction(self.times)  # a ValueError here names the line of the file


MISTAKES = read_table(Path(__file__).with_name("known_mistakes.csv"), Mistake)
NOT_DONE = Result(done=False)


def judge_numbers(
    exercise: str, answer: Any, expected: Mapping[str, Expected], praise: str
) -> Result:
    """Hold a dictionary of numbers against those that are expected.

    Args:
        exercise: its name in known_mistakes.csv.
        praise: what to say where all are right.
    """
    if lacking := incomplete(answer, expected):
        return lacking
    wrong, words = [], []
    for name, known in expected.items():
        number = number_of(answer[name])
        if number is None:
            words.append(f"{name} is no finite number.")
        elif _right(number, known):
            continue
        elif mistakes(exercise, name):
            known_words = mistake(exercise, number / known.number, name)
            words.append(f"{name}: {known_words or 'not right.'}")
        else:
            wrong.append(name)
    if wrong:
        words.append(f"Not right: {', '.join(wrong)}.")
    return Result(words=" ".join(words)) if words else Result(True, praise)


def mistakes(exercise: str, number: str = "") -> list[Mistake]:
    """The known mistakes about a number of an exercise."""
    return [m for m in MISTAKES if (m.exercise, m.number) == (exercise, number)]


def mistake(exercise: str, times: float, number: str = "") -> str:
    """What to say of an answer that is so many times what is right; nothing if it is not known."""
    for known in mistakes(exercise, number):
        if near(times, float(Fraction(known.times)), 0.02):
            return known.words
    return ""


def judge_function(
    answer: Any, cases: Iterable[tuple], look: Callable[..., str], praise: str
) -> Result:
    """Call the reader's function on cases, until one of them is wrong.

    Args:
        cases: the arguments of each call; the function gets a copy of them.
        look: takes what was returned and the arguments, and says what is wrong with it, or nothing.
        praise: what to say where all are right.
    """
    if not callable(answer):
        return no_function(answer)
    for case in cases:
        try:
            returned = answer(*deepcopy(case))
        except READERS_ERRORS as error:
            return Result(words=f"It raises {named_reason(error)}.")
        if returned is None:
            return NOT_DONE
        try:
            words = look(returned, *case)
        except Exception as error:  # something that cannot even be compared
            words = f"It returns {kind_of(returned)}, of no use here: {named_reason(error)}."
        if words:
            return Result(words=words)
    return Result(True, praise)


def no_function(answer: Any) -> Result:
    return Result(words=f"A function is wanted, not {kind_of(answer)}.")


def incomplete(answer: Any, keys: Collection[str]) -> Result | None:
    """What to say while the dictionary that is wanted is not whole; None where it is."""
    if not isinstance(answer, Mapping):
        return Result(words=f"A dictionary is wanted, not {kind_of(answer)}.")
    missing = [key for key in keys if answer.get(key) is None]
    if len(missing) == len(keys):
        return NOT_DONE
    return Result(words=f"There is no {missing[0]!r} in the answer yet.") if missing else None


def raised(error: BaseException) -> str:
    """What the reader's code raised, and in which of its lines, where it got so far."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if Path(last.filename).is_relative_to(HERE) else f" (line {last.lineno})"
    return f"raised {named_reason(error)}{where}"


def number_of(value: Any) -> float | None:
    """The value as a finite number, or None; a tensor or array of one element is one, True none."""
    number = float_of(value)
    return None if number is None or math.isinf(number) else number


def float_of(value: Any) -> float | None:
    """The same, where a number may be infinite."""
    value = plain(value)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except Exception:  # types of any package: each refuses in its own way
        return None
    return None if math.isnan(number) else number


def plain(value: Any) -> Any:
    """Python's own number in place of a package's, an array of one element too."""
    try:
        return value.item()
    except Exception:  # there is no such method, or more than one element
        return value


def near(number: float, expected: float, tolerance: float = 0.005) -> bool:
    return math.isclose(number, expected, rel_tol=tolerance)


def kind_of(value: Any) -> str:
    """What an answer is, in words."""
    name = type(value).__name__
    words = f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    shape = getattr(value, "shape", ())
    return f"{words} of shape {list(shape)}" if shape else words


def _right(number: float, known: Expected) -> bool:
    accepted = [known.number] if known.also is None else [known.number, known.also]
    return any(near(number, value, known.tolerance) for value in accepted)
