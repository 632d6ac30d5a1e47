"""The scripts for tests: refused in this process; train.py run in one of its own, too."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from helpers.engine.leaving import run_and_leave
from tests.ranks import forks

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "train.py"
TIMEOUT_S = 300


@cache
def module(name: str = "train", ranks: int = 1) -> ModuleType:
    """A script as a module, imported once: its imports take most of a refusal's time."""
    path = SCRIPT.with_name(f"{name}.py")
    with (
        patch.object(sys, "path", [str(path.parent), *sys.path]),
        patch.dict(os.environ, WORLD_SIZE=str(ranks)),
    ):
        spec = importlib.util.spec_from_file_location(f"{name}_script", path)
        sys.modules[spec.name] = made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    return made


def refusal(
    *arguments: object, out: Path, ranks: int = 1, script: str = "train", starts: str = "run"
) -> str:
    """The line with which a script refuses its arguments, before it starts anything.

    Args:
        ranks: what torchrun would say that it started.
        starts: the script's function that starts something.
    """
    found = module(script, ranks)
    argv = [f"{script}.py", *map(str, arguments), "--out", str(out)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        patch.object(found, starts, _started),
        patch.object(sys, "argv", argv),
        patch.dict(os.environ, WORLD_SIZE=str(ranks)),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            # without torchrun's @record, which has nothing to record
            getattr(found.main, "__wrapped__", found.main)()
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
    """Run the script to its end in a process of one rank. `lr=0.1` becomes `--lr=0.1`, True a
    switch. The process is forked from one that has the script's imports already."""
    words = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in flags.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("stdout", "stderr")]
        child = forks().Process(target=_main, args=(words, streams))
        child.start()
        child.join(TIMEOUT_S)
        if child.exitcode is None:
            child.kill()
        stdout, stderr = (stream.read_text() for stream in streams)
    assert child.exitcode is not None, f"the script runs longer than {TIMEOUT_S} s: {stderr}"
    return subprocess.CompletedProcess(words, child.exitcode, stdout, stderr)


def _main(words: list[str], streams: list[Path]) -> None:
    for descriptor, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), descriptor)
    os.chdir("/")
    sys.argv = [str(SCRIPT), *words]
    run_and_leave(module().main)
