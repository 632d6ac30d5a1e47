"""Execute one notebook headless, then show its tables and say where its figures are.

    python scripts/notebooks/execute.py [N] [-p name value]...

The notebook's parameter `out` names its result folder; tables (*.txt, *.csv) and figures (*.png)
that it leaves there are shown. Exit codes: 0 done; 2 wrong arguments; 1 a cell failed.
"""

import argparse
import ast
import os
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 30  # of a failing cell's traceback
# the kernel warns that its sockets are not encrypted; they are this machine's own
QUIET = ["--IPKernelApp.log_level=ERROR"]
KINDS = {"str": str, "int": int, "float": int | float, "bool": bool}
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def number_of(path: Path) -> int:
    """A notebook's, which its file name starts with."""
    return int(path.name.split("_")[0])


def find_notebook(wanted: str) -> Path:
    """The notebook of that number; SystemExit(2) with the list if there is none."""
    found = sorted((ROOT / "notebooks").glob("[0-9]*_*.ipynb"), key=number_of)
    for path in found:
        if path.name.split("_")[0] == wanted:
            return path
    names = ", ".join(path.stem for path in found) or "none yet"
    stop(2, f"there is no notebook {wanted}; the notebooks are: {names}")


def check_parameters(notebook: Path, given: dict) -> set[str]:
    """The notebook's own parameters; SystemExit(2) if one in `given` is not among them, or is of
    another type than its default."""
    import papermill

    known = papermill.inspect_notebook(str(notebook))
    unknown = [name for name in given if name not in known]
    if unknown:
        names = ", ".join(known) or "none"
        stop(2, f"{notebook.stem} has no parameter {unknown[0]}; its parameters are: {names}")
    for name, value in given.items():
        kind = known[name]["inferred_type_name"]
        if value is not None and kind in KINDS and not isinstance(value, KINDS[kind]):
            default = known[name]["default"]
            stop(
                2, f"{name} is {value!r}: give a value of type {kind}, as its default {default} is"
            )
    return set(known)


def execute(notebook: Path, out: Path, parameters: dict) -> None:
    """Run every cell with kernel `python3`; SystemExit(1) with the failing cell's last lines."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    try:
        papermill.execute_notebook(
            str(notebook),
            str(out / notebook.name),
            parameters=parameters,
            kernel_name="python3",
            progress_bar=sys.stderr.isatty(),
            cwd=str(notebook.parent),  # as JupyterLab does
            extra_arguments=QUIET,
        )
    except papermill.PapermillExecutionError as error:
        lines = ANSI.sub("", "\n".join(error.traceback)).rstrip().splitlines()
        print("\n".join(lines[-LAST_LINES:]), file=sys.stderr)
        stop(1, f"{notebook.stem} failed in cell [{error.exec_count}]: {error.ename}")
    except (CellTimeoutError, DeadKernelError) as error:
        lines = ANSI.sub("", str(error)).rstrip().splitlines()
        print("\n".join(lines[-LAST_LINES:]), file=sys.stderr)
        stop(1, f"{notebook.stem} failed: {type(error).__name__}")


def show_results(out: Path) -> None:
    """Print every table in `out` in the order in which it was written, then the figures' paths."""
    texts = by_age(out.glob("*.txt"))
    stems = {path.stem for path in texts}
    for path in texts:
        print(f"\n{path.stem}\n{path.read_text(encoding='utf-8').rstrip()}")
    for path in by_age(out.glob("*.csv")):
        if path.stem not in stems:
            print(f"\n{path.stem}\n{read_csv(path)}")
    figures = by_age(out.glob("*.png"))
    if figures:
        print("\nfigures")
    for path in figures:
        print(f"  {shown(path)}")


def by_age(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime_ns)


def shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def read_csv(path: Path) -> str:
    import pandas

    return pandas.read_csv(path).to_string(index=False)


def typed(text: str) -> bool | int | float | str | None:
    """The Python literal that `text` spells, or the text itself."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if value is None or isinstance(value, bool | int | float) else text


def stop(code: int, message: str) -> NoReturn:
    print(f"run: {message}", file=sys.stderr)
    raise SystemExit(code)


def parse(argv: list[str]) -> tuple[str, dict]:
    parser = argparse.ArgumentParser(
        prog="bash scripts/run", description="Execute one notebook headless into runs/."
    )
    parser.add_argument("number", nargs="?", default="1", help="the notebook's number (default 1)")
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="parameters",
        help="one of the notebook's parameters; may be given several times",
    )
    arguments = parser.parse_args(argv)
    return arguments.number, {name: typed(value) for name, value in arguments.parameters}


def main(argv: list[str]) -> None:
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's python3 kernel
    number, parameters = parse(argv)
    notebook = find_notebook(number)
    known = check_parameters(notebook, parameters)
    name = f"notebook-{number}-{time.strftime('%Y%m%d-%H%M%S')}"
    out = ROOT / parameters.get("out", f"runs/{name}")
    if "out" in known:
        parameters["out"] = str(shown(out))
    out.mkdir(parents=True, exist_ok=True)
    print(f"running {shown(notebook)} into {shown(out)}", flush=True)
    start = time.monotonic()
    execute(notebook, out, parameters)
    show_results(out)
    print(f"\nexecuted notebook: {shown(out / notebook.name)} ({time.monotonic() - start:.0f} s)")


if __name__ == "__main__":
    main(sys.argv[1:])
