"""The exercises of the notebooks, read from exercises.json: question, hints, and who judges.

The file has no answers: a judge, `topics.file.function` of this folder, computes them.
`on_ranks.file.function` is an exam, which runs on as many real ranks as its file says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.exercises.judges import Result
from helpers.lab.exercises.on_ranks.judge import judge_on_ranks
from helpers.lab.launch.warm.ranks import Ranks
from helpers.tables import read_table


@dataclass(frozen=True)
class Exercise:
    """A question, the judge of an answer, and hints that go further one by one.

    praise: what to say of a right answer on ranks; other judges have their own.
    """

    name: str
    judge: str
    question_lines: tuple[str, ...]
    hints: tuple[str, ...]
    praise: str = ""

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

    @property
    def file(self) -> ModuleType:
        """The module of the judge; one of an exam says on how many RANKS it runs."""
        return import_module(f"helpers.lab.exercises.{self.judge.rpartition('.')[0]}")

    @property
    def function(self) -> Callable[[Any], Any]:
        """The judge of an answer, or the exam that each rank runs."""
        return getattr(self.file, self.judge.rpartition(".")[2])

    def grade(self, answer: Any, ranks: Ranks | None = None) -> Result:
        """What the judge says of an answer."""
        if not self.on_ranks:
            return self.function(answer)
        return judge_on_ranks(answer, self.function, self.file.RANKS, self.praise, ranks)


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
