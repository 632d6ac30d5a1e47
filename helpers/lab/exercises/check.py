"""What looks at an answer to an exercise; the exercises are in exercises.json.

    check("1a traffic", my_bytes)

says in words whether the answer is right, and gives a hint where it is not: never the answer. An
answer that is None, or a function that returns None, is "not done yet", so an unsolved notebook
still runs to its end.
"""

from dataclasses import dataclass
from typing import Any

from helpers.engine.errors import check_count
from helpers.lab.exercises.judges import NOT_DONE, Result
from helpers.lab.exercises.questions import Exercise, find_exercise
from helpers.lab.figures.display import show_text
from helpers.lab.launch.warm.ranks import Ranks


@dataclass(frozen=True)
class Verdict:
    """What `check` found. `state` is passed, not yet, or not done yet."""

    exercise: str
    state: str
    message: str

    @property
    def passed(self) -> bool:
        return self.state == "passed"

    def __str__(self) -> str:
        return f"{self.exercise}: {self.state}. {self.message}".rstrip()

    def _ipython_display_(self) -> None:
        """Nothing more: `check` has shown it."""


def check(name: str, answer: Any, hint: int = 1, ranks: Ranks | None = None) -> Verdict:
    """Judge an answer, show what was found, and return it.

    Args:
        name: an exercise's name, or its number, as "1a"; `EXERCISES` has them all.
        answer: a number, a function or a dictionary, as the question asks.
        ranks: warm ranks for an answer that runs on ranks; without them it starts its own.
        hint: which hint to give where the answer is wrong and its mistake is not a known one.

    Raises:
        UserError: there is no exercise of that name.
    """
    check_count("hint", hint)
    exercise = find_exercise(name)
    result = NOT_DONE if answer is None else exercise.grade(answer, ranks)
    verdict = _verdict(exercise, result, hint)
    show_text(str(verdict))
    return verdict


def _verdict(exercise: Exercise, result: Result, hint: int) -> Verdict:
    if not result.done:
        return Verdict(exercise.name, "not done yet", exercise.question)
    if result.right:
        return Verdict(exercise.name, "passed", result.words)
    last = len(exercise.hints)
    number = min(max(hint, 1), last)
    message = f"{result.words} Hint {number} of {last}: {exercise.hints[number - 1]}"
    if number < last:
        message += f" (another: hint={number + 1})"
    return Verdict(exercise.name, "not yet", message.strip())
