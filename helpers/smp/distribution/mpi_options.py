"""Options of mpirun: variables that every rank still reads, and the rest, which torchrun needs not.

mpi_options("-x NCCL_DEBUG=INFO --mca btl ^openib")[0].variable        # NCCL_DEBUG=INFO
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.smp.reading.catalogue import CONVERTED, LEFT_OUT
from helpers.tables import read_table

FILE = Path(__file__).with_name("mpi_options.csv")


@dataclass(frozen=True)
class Prefix:
    """What becomes of variables whose names begin so."""

    prefix: str
    verdict: str
    words: str


@dataclass(frozen=True)
class Option:
    """One option as it is written, and what becomes of it.

    variable: NAME=VALUE, or NAME alone for one that the shell has; empty where it is left out.
    """

    text: str
    verdict: str
    words: str
    variable: str = ""


def mpi_options(options: Any) -> list[Option]:
    """The options of a line, in their order; none where it is no text."""
    if not isinstance(options, str):
        return []
    try:
        words = shlex.split(options.replace("\\\n", " "))
    except ValueError:
        words = options.split()
    found: list[Option] = []
    while words:
        word = words.pop(0)
        if word in ("-x", "--x") and words:
            found.append(_variable(words.pop(0)))
        elif word.startswith("-"):
            while words and not words[0].startswith("-"):
                word = f"{word} {words.pop(0)}"
            found.append(Option(word, LEFT_OUT, "torchrun starts the ranks, without MPI"))
        else:
            found.append(Option(word, LEFT_OUT, "no option"))
    return found


def _variable(text: str) -> Option:
    rows = read_table(FILE, Prefix)
    row = next((row for row in rows if text.startswith(row.prefix)), None)
    verdict, words = (row.verdict, row.words) if row else (CONVERTED, "a variable of every rank")
    return Option(f"-x {text}", verdict, words, text if verdict == CONVERTED else "")


def variables(options: list[Option]) -> dict[str, str]:
    """The environment that the options give to every rank."""
    pairs = [one.variable.partition("=") for one in options]
    return {name: value for name, equals, value in pairs if equals}
