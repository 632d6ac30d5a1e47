"""The exercises of the notebooks, read from exercises.json: question, hints, and who judges.

The file has no answers: a judge, a function of this folder as `file.function`, computes them.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers.lab.exercises.judges import Result
from helpers.tables import read_table


@dataclass(frozen=True)
class Exercise:
    """A question, the judge of an answer, and hints that go further one by one."""

    name: str
    judge: str
    question_lines: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def question(self) -> str:
        return " ".join(self.question_lines)

    def grade(self, answer: Any) -> Result:
        """What the judge says of an answer."""
        file, _, function = self.judge.partition(".")
        return getattr(import_module(f"helpers.lab.exercises.{file}"), function)(answer)


EXERCISES = {
    exercise.name: exercise
    for exercise in read_table(Path(__file__).with_name("exercises.json"), Exercise)
}
