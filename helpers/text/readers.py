"""Sentences and labels from TSV, CSV, JSON Lines, JSON, plain text or a hub data set.

What is wrong with a file is said in one line that names the file, the line and what was expected.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from helpers.engine.errors import UserError, as_path, cannot_read, check_access, need, reason
from helpers.engine.models.configurations import check_hub
from helpers.text.tokenizer import HUB_NAME

Task = Literal["lm", "classify", "instruct", "mlm", "classify-head"]
CLASSIFIES = ("classify", "classify-head")
SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".txt")
TEXT_COLUMNS = ("sentence", "text")
LABEL_COLUMN = "label"


class Example(NamedTuple):
    """One text; `where` names it in an error.

    `label` is a class, or the answer to an instruction, or None for language modelling.
    """

    text: str
    label: str | None
    where: str = "this example"


Row = dict[str, Any]  # the values by column
Placed = tuple[str, Row]  # where it stands ("reviews.tsv line 7"), the row
Check = Callable[[list[str], str], Any]  # of column names and where: raises where one is missing


def load_examples(source: str | Path, task: Task, *, split: str = "train") -> list[Example]:
    """Texts, and for tasks that classify labels, of `source` as `read_rows` takes it.

    The text is the column `sentence` or `text`; to classify needs the column `label` too (text or
    whole numbers; kept as text). Rows whose text is blank are left out. A `.txt` file is one
    document, without labels.

    Raises:
        UserError: the source is missing, empty, not of its format, lacks a column, or has no row.
    """
    if task not in ("lm", "mlm", *CLASSIFIES):
        raise UserError(f"unknown task {task!r}: {', '.join(get_args(Task))}")
    path = as_path(source)
    check_access(path)
    if path.is_file() and path.suffix.lower() == ".txt":
        text = _read_text(path)
        if task in CLASSIFIES:
            raise UserError(f"{path}: plain text has no labels; task {task} needs TSV, CSV, JSON")
        return [Example(text, None, str(path))]
    return read_rows(
        source,
        lambda names, where: _text_column(names, task, where),
        lambda row, where: _example(row, task, where),
        split,
    )


def read_rows(
    source: str | Path, check: Check, example: Callable[[Row, str], Example | None], split: str
) -> list[Example]:
    """What `example` makes of the rows of a file or a hub data set; rows that give None are blank.

    - `.tsv`: a header, tabs, no quoting (as GLUE ships its files); `.csv`: a header, quoting;
    - `.jsonl`, `.json`: an object a line, or one list of objects;
    - `name` or `name:configuration` (`glue:sst2`): read by the package datasets, `split` of it.

    Raises:
        UserError: the source is missing, empty, not of its format, has no row or blank ones only.
    """
    path = as_path(source)
    check_access(path)
    if path.is_file():
        rows = _file_rows(path, check)
    elif _may_be_hub_name(source):
        rows = _hub_rows(str(source), check, split)
    elif path.is_dir():
        raise UserError(f"{source} is a folder; give one file of it")
    else:
        raise UserError(f"no such data file: {source}")
    made = [example(_encodable(row, where), where) for where, row in rows]
    if not made:
        raise UserError(f"{source} has no rows")
    examples = [example for example in made if example is not None]
    if not examples:
        raise UserError(f"{source} has no usable row: every text in it is blank")
    return examples


def _encodable(row: Row, where: str) -> Row:
    """The row, where all of its text is Unicode: JSON can spell half a character."""
    for column, text in row.items():
        try:
            (text if isinstance(text, str) else "").encode()
        except UnicodeEncodeError:
            words = f"{column!a:.40} holds half a character (a lone surrogate)"
            raise UserError(f"{where}: {words}") from None
    return row


def _file_rows(path: Path, check: Check) -> Iterator[Placed]:
    suffix = path.suffix.lower()
    text = _read_text(path)
    if suffix == ".txt":
        raise UserError(f"{path}: plain text has no columns; this task needs TSV, CSV or JSON")
    return {".tsv": _tsv_rows, ".csv": _csv_rows}.get(suffix, _json_rows)(path, text, check)


def _read_text(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: the suffix is none of {', '.join(SUFFIXES)}")
    text = _decode(path)
    if not text.strip():
        raise UserError(f"{path} is empty")
    return text


def _decode(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start + len(data) - len(error.object)  # the codec cuts a byte order mark off
        line = data.count(b"\n", 0, offset) + 1
        raise UserError(
            f"{path} line {line}: byte {data[offset]:#04x} at offset {offset} is not UTF-8; "
            f"save the file as UTF-8"
        ) from None


def _tsv_rows(path: Path, text: str, check: Check) -> Iterator[Placed]:
    lines = text.split("\n")  # not splitlines: a sentence may hold other line separators
    header = lines[0].rstrip("\r").split("\t")
    _check_header(header, check, f"{path} line 1")
    for number, line in enumerate(lines[1:], start=2):
        values = line.rstrip("\r")
        if values:
            yield _row(f"{path} line {number}", header, values.split("\t"))


def _csv_rows(path: Path, text: str, check: Check) -> Iterator[Placed]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(len(text) + 1)  # a document may be longer than the default field
    try:
        header = next(reader)
        _check_header(header, check, f"{path} line 1")
        for values in reader:
            if values:
                yield _row(f"{path} line {reader.line_num}", header, values)
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num}: not valid CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)


def _check_header(header: list[str], check: Check, where: str) -> None:
    if len(set(header)) < len(header):
        raise UserError(f"{where}: a column is there twice; found: {shown_names(header)}")
    check(header, where)


def _row(where: str, header: list[str], values: list[str]) -> Placed:
    if len(values) != len(header):
        raise UserError(
            f"{where}: {len(values)} fields, but the header has {len(header)} "
            f"({shown_names(header)})"
        )
    return where, dict(zip(header, values, strict=True))


def _json_rows(path: Path, text: str, check: Check) -> Iterator[Placed]:
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
        check(list(value), where)
        yield where, value


def _json(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} line {line + error.lineno - 1}: not valid JSON "
            f"({error.msg} at column {error.colno}); an object a line was expected"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        reason = str(error).partition(":")[0].partition(";")[0]
        raise UserError(f"{path} line {line}: cannot be read as JSON ({reason})") from None


def _object(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key is there twice")
    return row


def _example(row: Row, task: str, where: str) -> Example | None:
    """A row whose columns are known to be there; None where the text is blank."""
    column = _text_column(list(row), task, where)
    text = row[column]
    if not isinstance(text, str):
        raise UserError(f"{where}: {column} is not text but {text!r:.60}")
    label = _label(row[LABEL_COLUMN], where) if task in CLASSIFIES else None
    return Example(text, label, where) if text.strip() else None


def _text_column(names: list[str], task: str, where: str) -> str:
    column = next((name for name in TEXT_COLUMNS if name in names), None)
    if column is None or (task in CLASSIFIES and LABEL_COLUMN not in names):
        wanted = "sentence (or text)" + (" and label" if task in CLASSIFIES else "")
        raise UserError(f"{where}: task {task} needs {wanted}; found: {shown_names(names)}")
    return column


def _label(value: Any, where: str) -> str:
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: the label is {value!r:.60}; text or a whole number was expected")
    return str(value).strip()


def shown_names(names: list[str]) -> str:
    """Column names on one line, whatever they hold."""
    return ", ".join(" ".join(name.split())[:40] or "(no name)" for name in names[:8])


def _may_be_hub_name(source: str | Path) -> bool:
    """`glue:sst2`, `imdb`, `stanfordnlp/sst2`; not a path, not a name with a file's suffix."""
    if isinstance(source, Path) or Path(source).exists():
        return False
    name = source.partition(":")[0]
    is_name = HUB_NAME.fullmatch(name) is not None and not name.startswith(".")
    return is_name and not name.lower().endswith(SUFFIXES)


def _hub_rows(source: str, check: Check, split: str) -> Iterator[Placed]:
    datasets = need("datasets", "hf")
    name, _, configuration = source.partition(":")
    try:
        check_hub("dataset", name)
    except UserError as error:
        raise UserError(f"{source} is no file here: {error}") from None
    try:
        rows = datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # the hub's libraries raise many kinds
        said = f"the data set {source} cannot be read from the hub: {reason(error)}"
        raise UserError(said) from None
    for number, row in enumerate(rows, start=1):
        where = f"{source} {split} row {number}"
        check(list(row), where)
        yield where, row
