"""`python -m helpers.leave`: reads, prints the report, and writes it with the run's files to --out.

Exit codes: 0 done; 2 an argument or a file is wrong, in one line, and nothing is written.
"""

import argparse
import ast
import sys
from pathlib import Path
from typing import Any, NoReturn

from helpers.engine.errors import UserError
from helpers.leave.forms import forms
from helpers.leave.report import report, to_json
from helpers.leave.writing import in_words, started, written
from helpers.smp.leaving import Leaving, leave


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


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
        scripts = written(found) if args.write else {}
        text = to_json(found) if args.json else report(found) + in_words(scripts)
        if args.out is not None:
            _write(found, scripts, args.out)
    except UserError as error:
        parser.error(str(error))
    print(text, end="")
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
    """The report, and a folder for each run.

    Raises:
        UserError: the folder cannot be written, or has a report already.
    """
    if (out / "report.md").exists():
        raise UserError(f"{out} already has a report: give another --out, or remove it")
    files = {"report.md": report(found) + in_words(scripts), "report.json": to_json(found)}
    files |= {f"written/{name}": text for name, text in scripts.items()} | started(found, scripts)
    for number, job in enumerate(found.jobs, 1):
        if job.plan is not None and not job.refused:
            files |= {f"run-{number}/{name}": text for name, text in forms(job).items()}
    try:
        for name, text in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}") from None


if __name__ == "__main__":
    sys.exit(main())
