"""The exercises of the notebooks, read from exercises.json: question, hints, and who judges.

The file has no answers: a judge, `topics.file.function` of this folder, computes them.
`on_ranks.file.function` runs an answer on real ranks.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.exercises.judges import Result
from helpers.lab.launch.warm.ranks import Ranks
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

    @property
    def lesson(self) -> str:
        """The number of its notebook, which its name starts with."""
        return self.name.split()[0].rstrip("abcdefgh")

    @property
    def on_ranks(self) -> bool:
        """Whether the answer runs on real ranks."""
        return self.judge.startswith("on_ranks.")

    def grade(self, answer: Any, ranks: Ranks | None = None) -> Result:
        """What the judge says of an answer."""
        file, _, function = self.judge.rpartition(".")
        judge = getattr(import_module(f"helpers.lab.exercises.{file}"), function)
        return judge(answer, ranks) if self.on_ranks else judge(answer)


EXERCISES = {
    exercise.name: exercise
    for exercise in read_table(Path(__file__).with_name("exercises.json"), Exercise)
}


def find_exercise(name: str) -> Exercise:
    """An exercise by its name, or by its number alone, as "1a".

    Raises:
        UserError: there is none of that name.
    """
    for exercise in EXERCISES.values():
        if name in (exercise.name, exercise.name.split()[0]):
            return exercise
    raise UserError(f"no exercise {name!r}; there are: {', '.join(EXERCISES)}")
