"""scripts/train.py for tests: refused in this process, or run as one of its own."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "train.py"


@cache
def module() -> ModuleType:
    """The script as a module, imported once: its imports take most of a refusal's time."""
    with patch.object(sys, "path", [str(SCRIPT.parent), *sys.path]):
        spec = importlib.util.spec_from_file_location("train_script", SCRIPT)
        sys.modules["train_script"] = made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    return made


def refusal(*arguments: object, out: Path, ranks: int = 1) -> str:
    """The line with which the script refuses its arguments, before it starts anything.

    Args:
        ranks: what torchrun would say that it started.
    """
    argv = ["train.py", *map(str, arguments), "--out", str(out)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        patch.object(module(), "run", _started),
        patch.object(sys, "argv", argv),
        patch.dict(os.environ, WORLD_SIZE=str(ranks)),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            module().main.__wrapped__()  # without torchrun's @record, which has nothing to record
        except SystemExit as exit:
            assert (exit.code, stdout.getvalue()) == (2, "")
            return the_line(stderr.getvalue())
    raise AssertionError("nothing was refused")


def _started(*_: object) -> None:
    raise AssertionError("the run was started")


def the_line(stderr: str) -> str:
    """The one line that stderr must be, without its beginning."""
    [line] = stderr.splitlines()
    assert line.startswith("error: ") and len(line) < 500
    return line.removeprefix("error: ")


def process(**flags: object) -> subprocess.CompletedProcess:
    """Run the script to its end in a plain process, of one rank. `lr=0.1` becomes `--lr=0.1`, True
    a switch."""
    words = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in flags.items()
    ]
    return subprocess.run(
        [sys.executable, SCRIPT, *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
