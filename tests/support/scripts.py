"""The scripts for tests: as modules, refused in this process, or run in forked ones."""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import IO, NamedTuple
from unittest.mock import patch

import torch

from helpers import commands
from helpers.engine.ranks import run_and_leave
from tests.support.ranks import forks

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "train"
TIMEOUT_S, GRACE_S = 300, 10
STREAMS = ("stdout", "stderr")


@cache
def module(name: str = TRAIN) -> ModuleType:
    """A script as a module, imported once: its imports take most of a refusal's time.

    Args:
        name: `train`, or a path in scripts/ without its suffix, as `measure/parity`.
    """
    if name == TRAIN:
        return importlib.import_module("helpers.train.run")
    made = script(name)
    sys.modules[made.__name__] = made
    return made


def script(name: str) -> ModuleType:
    """The module of scripts/NAME.py, made anew: scripts/ is no package."""
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_script", path)
    made = importlib.util.module_from_spec(spec)
    with patch.object(sys, "path", [str(path.parent), *sys.path]):  # as when it is run
        spec.loader.exec_module(made)
    return made


def main_of(name: str) -> Callable[[], None]:
    """What the script runs, without torchrun's @record, which has nothing to record."""
    main = module(name).main
    main = getattr(main, "__wrapped__", main)
    return partial(main, time.perf_counter()) if name == TRAIN else main


def refusal(
    *arguments: object, out: Path, ranks: int = 1, script: str = TRAIN, starts: str = "run"
) -> str:
    """The line with which a script refuses its arguments, before it starts anything.

    Args:
        ranks: what torchrun would say that it started.
        starts: the script's function that starts something.
    """
    argv = [f"{script}.py", *map(str, arguments), "--out", str(out)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        patch.object(module(script), starts, _started),
        patch.object(sys, "argv", argv),
        patch.dict(os.environ, WORLD_SIZE=str(ranks)),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main_of(script)()
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


def printed_to(output: int | IO[str], *arguments: str) -> tuple[int, str]:
    """Python with these arguments and its output there: its exit code, and what it says of it."""
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return run.returncode, run.stderr


def on_a_full_disk(*arguments: str) -> tuple[int, str]:
    """The same where nothing can be written."""
    with open("/dev/full", "w") as full:
        return printed_to(full, *arguments)


class Place(NamedTuple):
    """What torchrun would tell a rank."""

    rank: int
    ranks: int
    port: int

    @property
    def variables(self) -> dict[str, str]:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        rank = str(self.rank)
        return meeting | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(self.ranks)}


def process(
    ranks: int = 1,
    script: str = TRAIN,
    of_rank: dict[int, dict[str, object]] | None = None,
    folders: Sequence[Path] = (),
    **flags: object,
) -> subprocess.CompletedProcess:
    """Run a script to its end on `ranks` processes, forked from one that has its imports already.
    `lr=0.1` becomes `--lr=0.1`, True a switch, a list `--flag a b`.

    Args:
        of_rank: flags that a rank has in place of the others'.
        folders: where each rank is started, as on machines of their own; the root if not given.

    Returns:
        0 or the first code that is not, and what the ranks said, one after the other.
    """
    words = [list(_words(flags | (of_rank or {}).get(rank, {}))) for rank in range(ranks)]
    starts = folders or [Path("/")] * ranks
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free again when the ranks meet there
    with tempfile.TemporaryDirectory() as folder:
        places = [Place(rank, ranks, port) for rank in range(ranks)]
        children = [
            forks().Process(target=_main, args=(script, words[place.rank], place, folder, start))
            for place, start in zip(places, starts, strict=True)
        ]
        code = _exit_code(children)
        stdout, stderr = (
            "".join(_stream(folder, name, place).read_text() for place in places)
            for name in STREAMS
        )
    assert code is not None, f"{script} runs longer than {TIMEOUT_S} s: {stderr}"
    return subprocess.CompletedProcess(words[0], code, stdout, stderr)


def trained(ranks: int = 1, *, out: Path, **flags: object) -> tuple[dict, list[dict]]:
    """A run of scripts/train.py to its good end, as `process` has it: its summary, and its lines of
    metrics."""
    done = process(ranks, out=out, **flags)
    assert done.returncode == 0, done.stderr
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return json.loads((out / "summary.json").read_text()), list(map(json.loads, lines))


def _words(flags: dict[str, object]) -> Iterator[str]:
    for name, value in flags.items():
        word = f"--{name.replace('_', '-')}"
        if isinstance(value, list):
            yield from (word, *map(str, value))
        else:
            yield word if value is True else f"{word}={value}"


def _exit_code(children: list[BaseProcess]) -> int | None:
    """Start them and see them end: 0, the code of one that failed, whose peers are then given a
    little time, or None where they run too long. None is left."""
    for child in children:
        child.start()
    code, running, deadline = None, children, time.monotonic() + TIMEOUT_S
    while running and (left_s := deadline - time.monotonic()) > 0:
        wait([child.sentinel for child in running], left_s)
        running = [child for child in children if child.exitcode is None]
        failed = [child.exitcode for child in children if child.exitcode]
        if failed and code is None:
            code, deadline = failed[0], time.monotonic() + GRACE_S
    for child in running:
        child.kill()
    return code if running else code or 0


def _stream(folder: str, name: str, place: Place) -> Path:
    return Path(folder) / f"{name}-{place.rank}"


def _main(script: str, words: list[str], place: Place, folder: str, start: Path) -> None:
    for descriptor, name in enumerate(STREAMS, start=1):
        file = os.open(_stream(folder, name, place), os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
    os.chdir(start)
    if place.ranks > 1:
        os.environ |= place.variables
        torch.set_num_threads(1)
    commands.FIRST_SPEAKS_S = 0  # for torchrun, which would end the others
    sys.argv = [f"{script}.py", *words]
    run_and_leave(main_of(script))
