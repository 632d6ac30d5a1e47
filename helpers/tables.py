"""Knowledge as data: CSV and JSON tables beside the code that uses them, checked when read.

    gpus = read_table(Path(__file__).with_name("gpus.csv"), Gpu)       # a list of Gpu, a dataclass

A CSV file has a header with the names of the dataclass's fields; an empty cell is the field's
default, or None where its type allows it. Lines that begin with # are comments. A JSON file is a
list of objects with these names; what lies inside of them is read by its type too, an object as the
dataclass that the field says. What is wrong is said in one line that names the file and the row,
so a user can add a row without writing Python.
"""

import csv
import dataclasses
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from helpers.engine.errors import UserError, as_path

Row = TypeVar("Row")
TRUTH = {"true": True, "false": False}


@cache
def read_table(path: Path, row: type[Row]) -> tuple[Row, ...]:
    """The rows of a CSV or JSON file as instances of the dataclass `row`.

    Raises:
        UserError: the file cannot be read, or a row has an unknown, missing or mistyped field, or
            breaks a rule of the dataclass itself (a UserError or ValueError of its __post_init__).
    """
    return tuple(make_row(row, values, where) for where, values in read_rows(path))


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each row of a file says by field, after where it stands: its file and line.

    Raises:
        UserError: the file cannot be read.
    """
    path = as_path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin with a mark of UTF-8
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name} cannot be read: {error}") from None
    if path.suffix == ".csv":
        yield from _csv_rows(path.name, text)
        return
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise UserError(f"{path.name} must be a list of objects")
    yield from ((f"{path.name} object {number}", one) for number, one in enumerate(values, start=1))


def _csv_rows(name: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = [
        (f"{name} line {number}", line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    rows = [(where, _cells(line, where)) for where, line in lines]
    header = rows[0][1] if rows else []
    for where, row in rows[1:]:
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} cells, but the header has {len(header)}")
        yield where, {key: value for key, value in zip(header, row, strict=True) if value != ""}


def _cells(line: str, where: str) -> list[str]:
    try:
        [cells] = csv.reader([line], strict=True, skipinitialspace=True)
    except csv.Error as error:
        raise UserError(f"{where}: a quote does not end, or not with its cell: {error}") from None
    return cells


def make_row(row: type[Row], values: dict[str, Any], where: str) -> Row:
    """The dataclass `row` with these fields, which stand at `where`.

    Raises:
        UserError: as read_table.
    """
    hints = get_type_hints(row)
    fields = {field.name: field for field in dataclasses.fields(row)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise UserError(f"{where}: no field is called {unknown[0]!r}; there is {', '.join(fields)}")
    given = {name: _typed(value, hints[name], where, name) for name, value in values.items()}
    for name, field in fields.items():
        if name in given or not _required(field):
            continue
        if NoneType not in get_args(hints[name]):
            raise UserError(f"{where}: the field {name!r} is missing")
        given[name] = None
    try:
        return row(**given)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _required(field: dataclasses.Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _typed(value: Any, hint: Any, where: str, name: str) -> Any:
    """The value as the field's type; text of a CSV cell is read as a number or a truth value."""
    if get_origin(hint) in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        return _typed(value, kinds[0], where, name)
    if hint is bool and isinstance(value, str):
        value = TRUTH.get(value.lower(), value)
    if hint in (int, float) and isinstance(value, str):
        value = _number(value, hint)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return make_row(hint, value, f"{where}, {name}")
    if get_origin(hint) is tuple and isinstance(value, list):
        return _sequence(value, get_args(hint), where, name)
    if get_origin(hint) is dict and isinstance(value, dict):
        of_key, of_item = get_args(hint)
        return {
            _typed(key, of_key, where, name): _typed(item, of_item, where, f"{name} {key}")
            for key, item in value.items()
        }
    plain = get_origin(hint) or hint
    wrong = plain is not Any and not isinstance(value, plain)
    if wrong or (plain in (int, float) and isinstance(value, bool)):
        kind = getattr(plain, "__name__", str(plain))
        raise UserError(f"{where}: {name} must be of type {kind}, not {value!r}")
    return value


def _sequence(values: list, kinds: tuple, where: str, name: str) -> tuple:
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(values) != len(kinds):
        raise UserError(f"{where}: {name} must have {len(kinds)} values, not {len(values)}")
    return tuple(_typed(value, kind, where, name) for value, kind in zip(values, kinds))


def _number(text: str, kind: type) -> Any:
    try:
        return kind(text.replace("_", ""))
    except ValueError:
        return text
