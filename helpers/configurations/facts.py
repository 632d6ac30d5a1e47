"""What the keys of a file say together, and the parts of a layout that all programs share."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from helpers.engine.errors import UserError, one_line
from helpers.engine.plan import ParallelPlan
from helpers.smp.configuration import in_words, ranks_left
from helpers.smp.jobs.lines import Line
from helpers.smp.jobs.settings import NO_CLIP
from helpers.smp.reading.catalogue import LEFT_OUT, REFUSED

# what helpers.train takes as it stands
FLAGS = ("steps", "epochs", "lr", "weight_decay", "clip", "lr_schedule", "warmup", "optimizer")
FLAGS += ("seed", "device", "log_every", "task")
FROM_ZERO = ("seed", "warmup", "weight_decay")


class Asked(UserError):
    """The file does not say it: `name` is what to give."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the file does not say how many {name} there are: give --{name} N")
        self.name = name


@dataclass
class Layout:
    """A plan with what stands beside it.

    batch: samples of a step, over all ranks. lost: of what the plan cannot hold, each in words.
    planner: the program's name for the planner.
    """

    plan: ParallelPlan
    batch: int | None = None
    lost: list[str] = field(default_factory=list)
    planner: str = "engine"


@dataclass
class Facts:
    """Values by their names in a table's `to`, and the key that said each.

    keys: of the file, those that have a value. programs: whose keys they are.
    open: names whose values the script fills in.
    silent: the program's own values, each in words, where the file is silent.
    lacks: what of the model's sizes is missing, in words.
    """

    values: dict[str, Any] = field(default_factory=dict)
    said_by: dict[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    programs: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    silent: dict[str, str] = field(default_factory=dict)
    lacks: str = ""

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def put(self, name: str, value: Any, key: str) -> str:
        """Take a value; the words of a refusal where another key has said another."""
        before = self.said_by.get(name)
        if before is not None and self.values.get(name) != value:
            return f"{before} and {key} say one thing in two ways: keep one of them"
        self.values[name], self.said_by[name] = value, key
        return ""

    def own(self, name: str, value: Any, words: str) -> None:
        """Take a value that the program has of its own."""
        self.values[name], self.silent[name] = value, words

    def forget(self, name: str) -> None:
        """Leave a value of the program's own to the script."""
        self.values.pop(name, None)
        self.silent.pop(name, None)

    def instead(self, name: str, value: Any, words: str) -> None:
        """Take another key's value in the place of what a key has said, and say so in its line."""
        self.values[name] = value
        key = self.said_by.get(name, "").rpartition(": ")[2]
        for number, line in enumerate(self.lines):
            if key and line.text.startswith(f"{key}: "):
                self.lines[number] = replace(line, verdict=LEFT_OUT, became=words)

    @property
    def flags(self) -> dict[str, Any]:
        """Flags of helpers.train but for the plan's, the batch's and the model's."""
        found = {name: self.values[name] for name in FLAGS if self.get(name) is not None}
        if found.get("clip") == 0:
            found["clip"] = NO_CLIP
        return {name: value for name, value in found.items() if value != 0 or name in FROM_ZERO}

    @property
    def refused(self) -> str:
        """The first key that was refused, with its reason and the nearest thing."""
        line = next((line for line in self.lines if line.verdict == REFUSED), None)
        if line is None:
            return ""
        words = f"{line.text}: {line.became}" + (f"; {line.by_hand}" if line.by_hand else "")
        return one_line(words)


def left_over(ranks: int | None, **degrees: int) -> int:
    """Ranks that the other axes leave.

    Raises:
        UserError: nobody says how many ranks there are, or the axes do not divide them.
    """
    if ranks is None:
        raise Asked("ranks")
    return ranks_left(ranks, degrees)


def check_ranks(ranks: int | None, **degrees: int) -> None:
    """Raise a UserError if the axes are not for this number of ranks."""
    if ranks is not None and prod(degrees.values()) != ranks:
        words = in_words(degrees)
        raise UserError(f"{words} is for {prod(degrees.values())} ranks, and there are {ranks}")


def batches(facts: Facts, dp: int) -> tuple[int | None, int]:
    """Samples of a step over all ranks, and the parts that a data rank's go through in.

    Raises:
        UserError: the numbers contradict each other, or the batch does not divide.
    """
    total, micro, parts = facts.get("batch"), facts.get("micro"), facts.get("accumulation")
    for name, number in (("batch", total), ("micro-batch", micro), ("accumulation", parts)):
        if number == 0:
            raise UserError(f"a {name} of 0")
    if total is None:
        return (None if micro is None else micro * dp * (parts or 1)), parts or 1
    each = (micro or 1) * dp * (parts or 1)
    if total % each:
        raise UserError(f"a batch of {total} does not divide by {each}: {_batch(micro, parts, dp)}")
    if micro is not None and parts is not None and total != each:
        raise UserError(f"a batch of {total} is not {each}: {_batch(micro, parts, dp)}")
    return total, parts or (1 if micro is None else total // each)


def _batch(micro: int | None, parts: int | None, dp: int) -> str:
    named = [f"{micro} a micro-batch"] if micro else []
    named += [f"{parts} micro-batches"] if parts else []
    return " x ".join([*named, f"{dp} data ranks"])
