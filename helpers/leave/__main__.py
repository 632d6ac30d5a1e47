"""`python -m helpers.leave`: reads, prints the report, and writes it with the run's files to --out.

Exit codes: 0 done; 2 an argument or a file is wrong, in one line, and nothing is written.
"""

import ast
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from helpers.commands import Parser, say
from helpers.engine.errors import UserError, cannot_write
from helpers.engine.models.configurations import expanded
from helpers.leave.forms import refuse_what_training_does_not_take, run_files
from helpers.leave.report import report, to_json
from helpers.leave.writing import in_words, started, written
from helpers.smp.leaving import Leaving, leave


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m helpers.leave", description=__doc__)
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="scripts (.py), notebooks (.ipynb), recipes (.yaml)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="answers",
        help="a value that the files do not give",
    )
    add("--out", type=Path, help="folder for the report and the run's files")
    add("--write", action="store_true", help="the scripts with their calls replaced, as a diff")
    add("--json", action="store_true", help="print the report as data")
    args = parser.parse_args(argv)
    try:
        found = leave(args.files, dict(map(_answer, args.answers)))
        _check_answers(found, args.answers)
        for job in found.jobs:
            refuse_what_training_does_not_take(job)
        scripts = written(found) if args.write else {}
        text = to_json(found) if args.json else report(found) + in_words(scripts)
        if args.out is not None:
            _write(found, scripts, args.out)
    except UserError as error:
        parser.error(str(error))
    say(text, end="")
    return 0


def _answer(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {text}: write NAME=VALUE")
    try:
        return name.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name.strip(), value


def _check_answers(found: Leaving, answers: list[str]) -> None:
    """Raise a UserError if a value is for a name that nothing asks for."""
    for text in answers:
        name = text.partition("=")[0].strip()
        if name not in found.wanted:
            asks = ", ".join(found.asked) or "nothing"
            raise UserError(f"--set {name}: the files do not ask for it; they ask for {asks}")


def _write(found: Leaving, scripts: dict[str, str], out: Path) -> None:
    """The report, and a folder for each run: all of them, or none.

    Raises:
        UserError: the folder cannot be written, or has something of these names already.
    """
    out, files = expanded(out), _files(found, scripts)
    tops = sorted({Path(name).parts[0] for name in files})
    try:
        there = next((name for name in tops if os.path.lexists(out / name)), None)
        if there is not None:
            raise UserError(f"{out} already has {there}: give another --out, or remove it")
        nearest = next(path for path in (out, *out.parents) if path.exists())
        with tempfile.TemporaryDirectory(prefix=".leave-", dir=nearest) as draft:
            for name, text in files.items():
                path = Path(draft) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            out.mkdir(parents=True, exist_ok=True)
            for name in tops:
                (Path(draft) / name).rename(out / name)
    except OSError as error:
        raise cannot_write(out, error) from None


def _files(found: Leaving, scripts: dict[str, str]) -> dict[str, str]:
    """Texts by their names in the folder."""
    files = {"report.md": report(found) + in_words(scripts), "report.json": to_json(found)}
    files |= {f"written/{name}": text for name, text in scripts.items()} | started(found, scripts)
    for number, job in enumerate(found.jobs, 1):
        if job.plan is not None and not job.refused:
            files |= {f"run-{number}/{name}": text for name, text in run_files(job).items()}
    return files


if __name__ == "__main__":
    sys.exit(main())
