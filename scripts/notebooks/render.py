"""Execute the notebooks in the tiny profile and store what they showed in the committed files.

    python scripts/notebooks/render.py [N]...       # all of them where none is named
    python scripts/notebooks/render.py --check      # executes nothing: are the outputs current?

A reader on the web thus sees results. Each file records a hash of its source, which a test
compares: who changes a cell renders again. Nothing that names the machine is stored. Exit code 1:
a cell failed, or with --check an output is out of date.
"""

import argparse
import copy
import os
import re
import shutil
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import nbformat
from execute import QUIET, number_of

from helpers.lab.figures.what_if_sliders import WIDGET
from helpers.lab.machine.hardware import find_machine
from helpers.lab.notebook.record import RENDERED, source_hash
from helpers.lab.paths import ROOT, shorten

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*_*.ipynb"), key=number_of)
TIMEOUT_S = 600  # a cell
LINK_TO_RUN = re.compile(r'<a href="\.\./runs/[^"]*">(.*?)</a>')  # a reader has not its files
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def render(path: Path) -> None:
    """Execute a copy with `profile="tiny"`, and take over its outputs."""
    notebook = nbformat.read(path, as_version=4)
    results = f"runs/rendered/{path.stem}"
    shutil.rmtree(ROOT / results, ignore_errors=True)
    done = execute(notebook, {"profile": "tiny", "out": results})
    for cell in notebook.cells:
        kept = {key: cell.metadata[key] for key in ("tags", "jupyter") if key in cell.metadata}
        cell.metadata = nbformat.from_dict(kept)
        if RENDERED in kept.get("tags", []):
            cell.source = label()
        if cell.cell_type == "code":
            executed = done[cell.id]
            cell.execution_count = executed.execution_count
            cell.outputs = [clean(output) for output in executed.outputs]
    notebook.metadata = nbformat.from_dict({**METADATA, "source_sha256": source_hash(path)})
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def execute(notebook: Any, parameters: dict[str, str]) -> dict[str, Any]:
    """The executed code cells by id. The parameters are appended to the tagged cell, so that the
    numbers of the executions are those of a reader who runs all cells."""
    from nbclient import NotebookClient

    executed = copy.deepcopy(notebook)
    for cell in executed.cells:
        if "parameters" in cell.metadata.get("tags", []):
            lines = [f"{name} = {value!r}" for name, value in parameters.items()]
            cell.source = "\n".join([cell.source, *lines])
    client = NotebookClient(
        executed,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "notebooks")}},  # as JupyterLab does
        coalesce_streams=True,
        extra_arguments=QUIET,
    )
    client.execute()
    return {cell.id: cell for cell in executed.cells if cell.cell_type == "code"}


def clean(output: Any) -> Any:
    """Without folders of this machine, and without what the kernel adds for the browser; a widget
    is left as its words, since no kernel stands behind it."""
    output = nbformat.from_dict(_clean_text(output))
    output.pop("transient", None)
    output.get("data", {}).pop(WIDGET, None)
    return output


def _clean_text(value: Any) -> Any:
    if isinstance(value, str):
        return LINK_TO_RUN.sub(r"\1", shorten(value))
    if isinstance(value, list):
        return [_clean_text(item) for item in value]
    if isinstance(value, dict):
        return {
            key: item if key.startswith("image/") else _clean_text(item)
            for key, item in value.items()
        }
    return value


def label() -> str:
    """What stands above the outputs."""
    import torch

    machine = find_machine().words
    return (
        f"> **The outputs below** are of the profile `tiny`: {machine}, torch "
        f"{torch.__version__.split('+')[0]}, rendered on {date.today().isoformat()} by "
        "`scripts/notebooks/render.py`. Their throughput and cost are illustrative. Your own take "
        "their place as you run the cells."
    )


def out_of_date(path: Path) -> str:
    """Why the stored outputs are not those of the source; empty where they are."""
    notebook = nbformat.read(path, as_version=4)
    if any(cell.cell_type == "code" and not cell.execution_count for cell in notebook.cells):
        return "a cell has not been executed"
    if notebook.metadata.get("source_sha256") != source_hash(path):
        return "its source has changed since it was rendered"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", help="notebooks to render; all when left out")
    parser.add_argument("--check", action="store_true", help="compare hashes, execute nothing")
    args = parser.parse_args()
    numbers = [str(number_of(path)) for path in NOTEBOOKS]
    unknown = [number for number in args.numbers if number not in numbers]
    if unknown:
        parser.error(f"there is no notebook {unknown[0]}; there are: {', '.join(numbers)}")
    chosen = [p for p, n in zip(NOTEBOOKS, numbers) if n in args.numbers or not args.numbers]
    if args.check:
        stale = {path.name: why for path in chosen if (why := out_of_date(path))}
        for name, why in stale.items():
            print(f"{name}: {why}; run: python scripts/notebooks/render.py {number_of(Path(name))}")
        return 1 if stale else 0
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the kernel's too
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's python3 kernel
    for path in chosen:
        began = time.monotonic()
        render(path)
        print(f"{path.name}: rendered in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
