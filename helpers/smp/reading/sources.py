"""Scripts and notebooks as syntax trees, with the way back from a line to its place in the file.

    for program in read_source(Path("train.ipynb")).programs:
        program.place(7)                                  # train.ipynb, cell 3, line 2

Nothing of what is read is run. A notebook's code cells are one program, as its reader runs them
from the top; a cell that begins with %%writefile NAME.py is a program of its own. Magics and shell
lines become `pass`, so that lines keep their numbers. What cannot be read is refused in one line.
"""

import ast
import io
import json
import re
import sys
import textwrap
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, cannot_read

MOST_BYTES = 2**22  # of a script, or of a notebook's code
MOST_FILE_BYTES = 2**27  # of a notebook with its pictures
SHELL = re.compile(r"\s*[!%?]|\s*[\w.]+\?{1,2}\s*$|\s*(pip3?|conda|ls|cd|cat|mkdir)\s+[\w./-]")
CAPTURED = re.compile(r"(\s*[\w., ]+=\s*)[!%](.*)$")  # files = !ls
PYTHON_CELLS = re.compile(r"%%(time|timeit|capture|prun|local|heat)\b")
WRITES = re.compile(r"%%writefile\s+(?:-a\s+)?(\S+\.py)\s*$")
PYTHON_2 = re.compile(
    r"^\s*(print\s+[^(\s=]|exec\s+['\"]|raise\s+\w+\s*,|except\s+\w+\s*,\s*\w+:)", re.M
)


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands. Cells count from 1, those of text too; 0 in a script."""

    file: str
    cell: int
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{f'cell {self.cell}:' if self.cell else ''}{self.line}"


@dataclass(frozen=True)
class Program:
    """One syntax tree.

    places: of each line of the tree, the first line first.
    shell: lines of magics and shell commands, which the tree does not have.
    """

    tree: ast.Module = field(repr=False)
    text: str = field(repr=False)
    places: Sequence[Place] = field(repr=False)
    shell: tuple[tuple[Place, str], ...] = ()

    def place(self, line: int) -> Place:
        return self.places[line - 1]


@dataclass(frozen=True)
class Source:
    """A file that was read. `unread`: of a notebook's cells that are no Python, where and why."""

    path: Path
    programs: tuple[Program, ...]
    unread: tuple[tuple[Place, str], ...] = ()


def read_source(path: Path) -> Source:
    """A script or a notebook.

    Raises:
        UserError: there is no such file, or it is neither; one line that says why.
    """
    if path.suffix not in (".py", ".ipynb"):
        raise UserError(f"{path} is no script (.py), notebook (.ipynb) or recipe (.yaml)")
    if path.is_fifo():  # which would be waited for
        raise UserError(f"{path} cannot be read: it is a pipe")
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MOST_FILE_BYTES else b""
    except OSError as error:
        raise cannot_read(path, error) from None
    if size > (MOST_BYTES if path.suffix == ".py" else MOST_FILE_BYTES):
        raise UserError(f"{path} has {size / 1e6:.0f} MB: no script that a person wrote is so long")
    if path.suffix == ".ipynb":
        return _notebook(path, data)
    text = _decoded(path, data)
    lines = text.splitlines() or [""]
    places = [Place(str(path), 0, number) for number in range(1, len(lines) + 1)]
    return Source(path, (_program(text, places, str(path)),))


def _decoded(path: Path, data: bytes) -> str:
    """The text of a script, in the encoding that it names."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return _with_python_s_lines(data.decode(encoding))
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise UserError(f"{path} is no text in the encoding that it names") from None


def _with_python_s_lines(text: str) -> str:
    """Each ends in a line feed; and there is no form feed, at which Python counts columns anew."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", " ")


def _program(text: str, places: Sequence[Place], name: str, shell: Any = ()) -> Program:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that a later Python will refuse
            tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{_where(places, error, name)}: {_no_python(text, error)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{name} is no Python: {error}") from None
    return Program(tree, text, places, tuple(shell))


def _where(places: Sequence[Place], error: SyntaxError, name: str) -> str:
    line = error.lineno or 1
    return str(places[line - 1]) if 0 < line <= len(places) else name


def _no_python(text: str, error: SyntaxError) -> str:
    if PYTHON_2.search(text):
        return "this is Python 2; bring it to Python 3 first, as 2to3 does"
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"no Python that Python {ours} reads ({error.msg})"


def _notebook(path: Path, data: bytes) -> Source:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no notebook: {str(error)[:100]}") from None
    cells = content.get("cells") if isinstance(content, dict) else None
    if cells is None and isinstance(content, dict) and isinstance(content.get("worksheets"), list):
        raise UserError(f"{path} is a notebook of format 3: open and save it in Jupyter once")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{path} is no notebook: it has no list of cells")
    if (language := _language(content)) not in ("", "python"):
        raise UserError(f"{path} is a notebook of {language}, and not of Python")
    code = [
        (n, _source(cell)) for n, cell in enumerate(cells, 1) if cell.get("cell_type") == "code"
    ]
    code = [(number, text) for number, text in code if text.strip()]
    if not code:
        raise UserError(f"{path} has no cells with code")
    if sum(len(text) for _, text in code) > MOST_BYTES:
        raise UserError(f"{path} has cells of more than {MOST_BYTES / 1e6:.0f} MB of code")
    return _Cells(path).read(code)


def _language(content: dict[str, Any]) -> str:
    """What the notebook's kernel speaks, as it says; in lower case."""
    facts = content.get("metadata")
    facts = facts if isinstance(facts, dict) else {}
    for part, key in (("language_info", "name"), ("kernelspec", "language")):
        if isinstance(facts.get(part), dict) and isinstance(facts[part].get(key), str):
            return facts[part][key].lower()
    return ""


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    return _with_python_s_lines(text)


class _Cells:
    """The code cells of a notebook, put together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.places: list[Place] = []
        self.shell: list[tuple[Place, str]] = []
        self.written: list[Program] = []
        self.unread: list[tuple[Place, str]] = []

    def read(self, cells: list[tuple[int, str]]) -> Source:
        for number, text in cells:
            try:
                self._add(number, text)
            except UserError as error:
                where, _, why = str(error).partition(": ")
                self.unread.append((Place(str(self.path), number, _line_of(where)), why))
        if not self.lines and not self.written and self.unread:
            place, why = self.unread[0]
            raise UserError(f"{place}: {why}")
        text = "\n".join(self.lines) + "\n"
        places = self.places or [Place(str(self.path), 1, 1)]
        whole = _program(text, places, str(self.path), self.shell)
        return Source(self.path, (whole, *self.written), tuple(self.unread))

    def _add(self, number: int, text: str) -> None:
        # str.splitlines cuts where Python does not
        lines = textwrap.dedent(text).rstrip("\n").split("\n")
        places = [Place(str(self.path), number, line) for line in range(1, len(lines) + 1)]
        first = lines[0].strip() if lines else ""
        if first.startswith("%%") and not PYTHON_CELLS.match(first):
            if WRITES.match(first):
                lines[0] = ""
                self.written.append(_program("\n".join(lines) + "\n", places, str(self.path)))
            else:
                self.shell += [(place, line) for place, line in zip(places, lines) if line.strip()]
            return
        shell: list[tuple[Place, str]] = []
        if not _parses("\n".join(lines) + "\n"):
            lines, shell = _without_magics(lines, places)
        _program("\n".join(lines) + "\n", places, str(self.path))  # alone, for its own faults
        self.lines += lines
        self.places += places
        self.shell += shell


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _line_of(where: str) -> int:
    number = where.rpartition(":")[2]
    return int(number) if number.isdigit() else 1


def _without_magics(
    lines: list[str], places: list[Place]
) -> tuple[list[str], list[tuple[Place, str]]]:
    """The lines with `pass` in the place of those that are IPython's, and these."""
    kept: list[str] = []
    shell, goes_on = [], False
    for line, place in zip(lines, places):
        captured = CAPTURED.match(line)
        if goes_on or (SHELL.match(line) and not _is_open(kept)):
            kept.append("" if goes_on else f"{line[: len(line) - len(line.lstrip())]}pass")
            shell.append((place, line.strip()))
            goes_on = line.rstrip().endswith("\\")
        elif captured and not _is_open(kept):
            kept.append(f"{captured[1]}__shell__")
            shell.append((place, captured[2]))
            goes_on = line.rstrip().endswith("\\")
        else:
            kept.append(line)
    return kept, shell


def _is_open(lines: list[str]) -> bool:
    """Is a string or a bracket still open after these lines?"""
    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except (SyntaxError, IndentationError):
        pass
    return False
