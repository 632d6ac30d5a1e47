"""Sentences and labels from TSV, CSV, JSON Lines, JSON, plain text or a hub data set.

What is wrong with a file is said in one line that names the file, the line and what was expected.
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from helpers.engine.errors import UserError, need
from helpers.engine.hub import check_hub
from helpers.engine.tokenizer import HUB_NAME

Task = Literal["lm", "classify"]
SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".txt")
TEXT_COLUMNS = ("sentence", "text")
LABEL_COLUMN = "label"


class Example(NamedTuple):
    """One text; `label` is None for language modelling. `where` names it in an error."""

    text: str
    label: str | None
    where: str = "this example"


Row = tuple[str, dict[str, Any]]  # where it stands ("reviews.tsv line 7"), the values by column


def load_examples(source: str | Path, task: Task, *, split: str = "train") -> list[Example]:
    """Read `source`: a file whose suffix says its format, or a hub data set's name.

    - `.tsv`: a header, tabs, no quoting (as GLUE ships its files); `.csv`: a header, quoting;
    - `.jsonl`, `.json`: an object a line, or one list of objects;
    - `.txt`: one document, for task "lm" only;
    - `name` or `name:configuration` (`glue:sst2`): read by the package datasets, `split` of it.

    The text is the column `sentence` or `text`; task "classify" needs the column `label` too
    (text or whole numbers; kept as text). Rows whose text is blank are left out.

    Raises:
        UserError: the source is missing, empty, not of its format, lacks a column, or has no row.
    """
    if task not in ("lm", "classify"):
        raise UserError(f"unknown task {task!r}: lm or classify")
    path = Path(source)
    if path.is_file():
        examples = _read_file(path, task)
    elif _may_be_hub_name(source):
        examples = _read_hub(str(source), task, split)
    elif path.is_dir():
        raise UserError(f"{source} is a folder; give one file of it")
    else:
        raise UserError(f"no such data file: {source}")
    if not examples:
        raise UserError(f"{source} has no usable row: every text in it is blank")
    return examples


def _read_file(path: Path, task: Task) -> list[Example]:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: the suffix is none of {', '.join(SUFFIXES)}")
    text = _decode(path)
    if not text.strip():
        raise UserError(f"{path} is empty")
    if suffix == ".txt":
        if task == "classify":
            raise UserError(f"{path}: plain text has no labels; task classify needs TSV, CSV, JSON")
        return [Example(text, None, str(path))]
    read_rows = {".tsv": _tsv_rows, ".csv": _csv_rows}.get(suffix, _json_rows)
    return _examples(str(path), read_rows(path, text, task), task)


def _decode(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start + len(data) - len(error.object)  # the codec cuts a byte order mark off
        line = data.count(b"\n", 0, offset) + 1
        raise UserError(
            f"{path} line {line}: byte {data[offset]:#04x} at offset {offset} is not UTF-8; "
            f"save the file as UTF-8"
        ) from None


def _tsv_rows(path: Path, text: str, task: Task) -> Iterator[Row]:
    lines = text.split("\n")  # not splitlines: a sentence may hold other line separators
    header = lines[0].rstrip("\r").split("\t")
    _text_column(header, task, f"{path} line 1")
    for number, line in enumerate(lines[1:], start=2):
        values = line.rstrip("\r")
        if values:
            yield _row(f"{path} line {number}", header, values.split("\t"))


def _csv_rows(path: Path, text: str, task: Task) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(len(text) + 1)  # a document may be longer than the default field
    try:
        header = next(reader)
        _text_column(header, task, f"{path} line 1")
        for values in reader:
            if values:
                yield _row(f"{path} line {reader.line_num}", header, values)
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: not valid CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)


def _row(where: str, header: list[str], values: list[str]) -> Row:
    if len(values) != len(header):
        raise UserError(
            f"{where}: {len(values)} fields, but the header has {len(header)} ({_shown(header)})"
        )
    return where, dict(zip(header, values, strict=True))


def _json_rows(path: Path, text: str, task: Task) -> Iterator[Row]:
    if text.lstrip().startswith("["):
        values = enumerate(_json(path, 1, text), start=1)
        unit = "object"
    else:
        lines = enumerate(text.split("\n"), start=1)
        values = ((number, _json(path, number, line)) for number, line in lines if line.strip())
        unit = "line"
    for number, value in values:
        where = f"{path} {unit} {number}"
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise UserError(f'{where}: an object like {{"text": ...}} was expected, not {kind}')
        _text_column(list(value), task, where)
        yield where, value


def _json(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} line {line + error.lineno - 1}: not valid JSON "
            f"({error.msg} at column {error.colno}); an object a line was expected"
        ) from None


def _examples(source: str, rows: Iterator[Row], task: Task) -> list[Example]:
    """Rows whose columns are known to be there, to examples; blank texts are left out."""
    examples = []
    count = 0
    for where, row in rows:
        count += 1
        column = _text_column(list(row), task, where)
        text = row[column]
        if not isinstance(text, str):
            raise UserError(f"{where}: {column} is not text but {text!r:.60}")
        label = _label(row[LABEL_COLUMN], where) if task == "classify" else None
        if text.strip():
            examples.append(Example(text, label, where))
    if not count:
        raise UserError(f"{source} has a header and no rows")
    return examples


def _text_column(names: list[str], task: Task, where: str) -> str:
    column = next((name for name in TEXT_COLUMNS if name in names), None)
    if column is None or (task == "classify" and LABEL_COLUMN not in names):
        wanted = "sentence (or text)" + (" and label" if task == "classify" else "")
        raise UserError(f"{where}: task {task} needs {wanted}; found: {_shown(names)}")
    return column


def _label(value: Any, where: str) -> str:
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: the label is {value!r:.60}; text or a whole number was expected")
    return str(value).strip()


def _shown(names: list[str]) -> str:
    """Column names on one line, whatever they hold."""
    return ", ".join(" ".join(name.split())[:40] or "(no name)" for name in names[:8])


def _may_be_hub_name(source: str | Path) -> bool:
    """`glue:sst2`, `imdb`, `stanfordnlp/sst2`; not a path, not a name with a file's suffix."""
    if isinstance(source, Path) or Path(source).exists():
        return False
    name = source.partition(":")[0]
    is_name = HUB_NAME.fullmatch(name) is not None and not name.startswith(".")
    return is_name and not name.lower().endswith(SUFFIXES)


def _read_hub(source: str, task: Task, split: str) -> list[Example]:
    datasets = need("datasets", "hf")
    name, _, configuration = source.partition(":")
    try:
        check_hub("dataset", name)
    except UserError as error:
        raise UserError(f"{source} is no file here: {error}") from None
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # the hub's libraries raise many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise UserError(f"the data set {source} cannot be read from the hub: {reason}") from None
    numbered = ((f"{source} {split} row {number}", row) for number, row in enumerate(rows, start=1))
    return _examples(source, numbered, task)
