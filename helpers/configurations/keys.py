"""The keys of each program's files, and how a key's value is read: the tables in tables/."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.smp.reading.catalogue import CONVERTED, LEFT_OUT, REFUSED
from helpers.tables import read_table

TABLES = Path(__file__).parent / "tables"
HOWS = ("left", "off", "same", "refused", "count", "degree", "number", "word", "switch", "choice")
HOWS += ("given", "both", "set")
UNSAID = re.compile(
    r"\?\?\?|.*\$[\w{(@*].*", re.DOTALL
)  # NeMo's «give it», and what refers outside
MOST = 2**32


@dataclass(frozen=True)
class Key:
    """A key and what becomes of it; `{a|b}` in a key stands for either, `*` for any name.

    how: `left` out; `off`, refused but for `values`; `same` as here with `values`, else lost;
        `refused`; or the way its value is read: count, degree, number, word, switch, choice (of
        `values`, `theirs=ours`), given (as it stands); both, a switch or what `values` choose; set,
        `values` or true wherever it has a value, be it known or not.
    to: the fact, or the flag of helpers.train, that it becomes.
    words: why, or what it becomes. nearest: what to do by hand.
    default: the program's own value where a file does not say it, or says nothing of it beside the
        key `where`. note: of the default.
    """

    key: str
    how: str
    to: str = ""
    values: str = ""
    words: str = ""
    nearest: str = ""
    default: str = ""
    where: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.how not in HOWS:
            raise UserError(f"how is one of {', '.join(HOWS)}, not {self.how!r}")

    @property
    def choices(self) -> dict[str, str]:
        """What the values become, by their names in lower case."""
        pairs = (part.partition("=") for part in self.values.split("|"))
        return {name.strip().lower(): ours.strip() for name, _, ours in pairs}


@dataclass(frozen=True)
class Judged:
    """What became of a key: a verdict, words, what is lost, what to do by hand; and its fact.

    open: the script that takes the file fills it in.
    """

    verdict: str
    words: str
    lost: str = ""
    by_hand: str = ""
    fact: Any = None
    open: bool = False


@cache
def keys(program: str) -> tuple[Key, ...]:
    """A program's keys, those without * first, the longest first, so that the nearest fits."""
    rows = [one for row in read_table(TABLES / f"{program}.csv", Key) for one in _written_out(row)]
    return tuple(sorted(rows, key=lambda row: (row.key.count("*"), -len(row.key))))


def _written_out(row: Key) -> Iterator[Key]:
    found = re.search(r"\{([^{}]*)\}", row.key)
    if not found:
        yield row
        return
    for name in found[1].split("|"):
        key = f"{row.key[: found.start()]}{name.strip()}{row.key[found.end() :]}"
        yield from _written_out(replace(row, key=key))


def defaults(program: str) -> list[Key]:
    """Keys with the program's own value, which holds where a file does not say it."""
    return [row for row in keys(program) if row.default]


def find_key(program: str, path: str) -> Key | None:
    """A key's row, or None where nobody knows it."""
    return next((row for row in keys(program) if fnmatchcase(path, row.key)), None)


def unknown(program: str, path: str, value: Any) -> Judged:
    """The refusal of a key that nobody knows, with the nearest that there is."""
    if not value and any(row.key.startswith(f"{path}.") for row in keys(program)):
        return Judged(LEFT_OUT, "empty: as without it")
    if path.startswith("$"):
        return Judged(REFUSED, "its flags are not in the file", by_hand="write them out")
    names = [row.key for row in keys(program) if "*" not in row.key]
    last = {name.rpartition(".")[2]: name for name in names}
    near = get_close_matches(path, names, n=1, cutoff=0.75)
    near = near or [last[one] for one in get_close_matches(path.rpartition(".")[2], last, n=1)]
    hint = f"did you mean {near[0]}?" if near else "no key is like it"
    return Judged(REFUSED, f"{program} has no key {path[:80]}", by_hand=hint)


def judge(row: Key, value: Any) -> Judged:
    """What becomes of a key with this value."""
    if row.how == "left":
        return Judged(LEFT_OUT, row.words)
    if value is None or value in ("", {}, []):
        return Judged(LEFT_OUT, "no value: as without it")
    if row.how == "refused":
        return Judged(REFUSED, row.words, by_hand=row.nearest)
    if row.how == "set":
        if str(value).lower() in ("false", "none"):
            return Judged(LEFT_OUT, "off")
        return Judged(CONVERTED, row.words, fact=row.values or True)
    if isinstance(value, str) and UNSAID.fullmatch(value):
        if row.how in ("off", "same") or row.nearest == "--ranks":
            unknown = 0 if row.to else None  # of nodes and GPUs: --ranks is asked for
            return Judged(LEFT_OUT, "its value is not in the file", fact=unknown)
        return Judged(
            REFUSED, f"its value is {value[:40]}, not in the file", by_hand="write it out"
        )
    plain = str(value).lower()
    if plain == "auto" and plain not in row.choices:
        return Judged(LEFT_OUT, "auto: the script's own", open=True)
    if row.how == "off":
        if plain in row.choices:
            return Judged(LEFT_OUT, "off")
        return Judged(REFUSED, row.words, by_hand=row.nearest)
    if row.how == "same":
        same = plain in row.choices
        return Judged(LEFT_OUT, "as it is here" if same else row.words, "" if same else f"{value}")
    if isinstance(value, str) and not value.isprintable():
        words = f"{value!r:.60} has characters that cannot be printed"
        return Judged(REFUSED, words, by_hand="write it without them")
    return _read(row, value, plain)


def _read(row: Key, value: Any, plain: str) -> Judged:
    if row.how in ("choice", "both") and plain in row.choices:
        ours = row.choices[plain]
        if not ours:
            return Judged(LEFT_OUT, "off")
        return Judged(CONVERTED, f"{row.to} {ours}", fact=ours)
    if row.how == "choice":
        known = row.words or f"there is {', '.join(row.choices)}"
        return Judged(REFUSED, f"{value!r:.60}: {known}", by_hand=row.nearest)
    if row.how in ("switch", "both"):
        return _switched(row, value, plain)
    if row.how in ("count", "degree", "number"):
        return _number(row, value)
    if row.how == "word" and not isinstance(value, (str, int, float)):
        return Judged(REFUSED, f"{value!r:.60} is no word", by_hand="give a word")
    return Judged(CONVERTED, row.words or f"{row.to} {value!s:.60}", fact=value)


def _switched(row: Key, value: Any, plain: str) -> Judged:
    if plain in ("false", "0", "no", "none"):
        return Judged(LEFT_OUT, "off", fact=False)
    if plain in ("true", "1", "yes"):
        return Judged(CONVERTED, row.words or row.to, fact=True)
    return Judged(REFUSED, f"{value!r:.60} is neither true nor false", by_hand="give one of them")


def _number(row: Key, value: Any) -> Judged:
    number = _parsed(value)
    if row.how == "number":
        above = row.to in ("lr", "peak_lr")
        fits = number is not None and (number > 0 if above else number >= 0)
        wants = "a number above 0" if above else "a number of at least 0"
    else:
        least = 1 if row.how == "degree" else 0
        fits = number is not None and number == int(number) and least <= number < MOST
        wants = f"a whole number of at least {least}"
        if row.values and str(value) in row.choices:  # -1 for what is left, 0 for off
            ours = row.choices[str(value)]
            return Judged(LEFT_OUT, row.words or "as without it", fact=int(ours) if ours else None)
    if not fits:
        return Judged(REFUSED, f"{value!r:.60} is not {wants}", by_hand=f"give {wants}")
    number = number if row.how == "number" else int(number)
    return Judged(CONVERTED, row.words or f"{row.to} {number}", fact=number)


def _parsed(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value)
    if not re.fullmatch(r"[-+]?(\d[\d_]{0,30}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,3})?", text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None
