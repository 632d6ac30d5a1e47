"""What is known of the closed service's libraries: the tables in calls/, a file a library.

    known = catalogue()
    known.short("smdistributed.modelparallel.torch.rank")      # smp.rank
    known.find("smp.rank").became                              # run.rank(): …

A row's name is a module's or a function's, `smp.rank`; of an object that a call makes,
`smp.DistributedModel().backward`; of an argument, `estimator(instance_type)`; a word in quotes; or
of all that begins so, `smp.nn.*`. The longest that fits is taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from helpers.engine.errors import UserError
from helpers.tables import read_table

Row = TypeVar("Row")
FOLDER = Path(__file__).parents[1] / "calls"
LIBRARIES, ENDINGS = FOLDER / "libraries.csv", FOLDER / "endings.csv"
CONVERTED, LEFT_OUT, REFUSED = VERDICTS = ("converted", "left out", "refused")
ANYWHERE, BESIDE = DISTINCT = ("anywhere", "beside")


@dataclass(frozen=True)
class Library:
    """A library of the service, or a part of its SDK.

    name: as the report calls it. module: where it is imported from; all below it is the library's.
    short: how its rows begin. table: the file that has them.
    """

    name: str
    module: str
    short: str
    table: str
    date: str
    source: str


@dataclass(frozen=True)
class Call:
    """What becomes of a use.

    verdict: `converted`; `left out`, it does nothing here; `refused`, there is nothing like it.
    became: what does it here, or the reason. lost: of what it did. by_hand: what you must do.
    gives: the object that a call of it makes, where its methods have rows under another name.
    distinct: a method is known by its name on any object, `anywhere` or `beside` an import of it.
    """

    name: str
    verdict: str
    became: str
    lost: str = ""
    by_hand: str = ""
    gives: str = ""
    distinct: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise UserError(f"verdict is one of {', '.join(VERDICTS)}, not {self.verdict!r}")
        if self.distinct not in ("", *DISTINCT):
            raise UserError(f"distinct is empty, {' or '.join(DISTINCT)}, not {self.distinct!r}")
        if self.verdict == REFUSED and not self.by_hand:
            raise UserError("what is refused says what to do by hand")


@dataclass(frozen=True)
class Ending:
    """What is said of the end of a library: the day, and in which words."""

    library: str
    words: str
    date: str
    source: str

    def __str__(self) -> str:
        return f"{self.date}: {self.words}"


class Catalogue:
    """All rows, by name."""

    def __init__(self) -> None:
        rows = read_table(LIBRARIES, Library)
        self._libraries = sorted(rows, key=lambda one: -len(one.module))  # the longest fits first
        self.tables = {row.table: row.name for row in rows}
        self.rows: dict[str, Call] = {}
        self._library_of: dict[str, str] = {}
        for table, library in self.tables.items():
            for row in read_table(FOLDER / f"{table}.csv", Call):
                if row.name in self.rows:
                    raise UserError(f"{table}.csv: a second row {row.name!r}")
                self.rows[row.name], self._library_of[row.name] = row, library
        self.distinct = {n.rpartition(".")[2]: n for n, row in self.rows.items() if row.distinct}
        self._objects = {n.rpartition(".")[0] for n in self.rows if ")." in n}
        self._objects |= {n.rpartition("(")[0] for n in self.rows if n.count("(") > n.count("()")}
        self.endings = {row.library: row for row in read_table(ENDINGS, Ending)}

    def short(self, dotted: str) -> str | None:
        """The name that rows have for what is imported as `dotted`; None of other libraries."""
        for library in self._libraries:
            if dotted == library.module or dotted.startswith(f"{library.module}."):
                return library.short + dotted.removeprefix(library.module)
        return None

    def find(self, name: str) -> Call | None:
        """The row that fits a name best."""
        if name in self.rows:
            return self.rows[name]
        if name.endswith(")"):
            return self.rows.get(f"{name.rpartition('(')[0]}(*)")
        return below(self.rows, name)

    def library(self, name: str) -> str:
        """The library that a row is of, or a name without one."""
        row = self.find(name)
        if row is not None:
            return self._library_of[row.name]
        fits = (one.name for one in self._libraries if name.split(".")[0] == one.short)
        return next(fits, "")

    def gives(self, name: str) -> str | None:
        """The object that a call of `name` makes, if something is known of it."""
        row = self.find(name)
        made = (row.gives if row else "") or f"{name}()"
        return made if made in self._objects else None


def below(rows: Mapping[str, Row], name: str) -> Row | None:
    """The row of the longest `part.*` that a name lies below."""
    while "." in name:
        name = name.rpartition(".")[0]
        if f"{name}.*" in rows:
            return rows[f"{name}.*"]
        if name.endswith(")"):
            return None  # an object has its class's other attributes, which are no library's
    return None


@cache
def catalogue() -> Catalogue:
    """The tables, read once.

    Raises:
        UserError: a row is wrong, in one line that names the file and the row.
    """
    return Catalogue()
