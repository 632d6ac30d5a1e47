"""What a launch will start, decided before anything is: script, flags, folders, environment."""

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from numbers import Real
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.lab.paths import ROOT, shorten, shown
from helpers.lab.runs import holds_run

MEET = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29400")


@dataclass(frozen=True)
class Job:
    """One script on `nproc` ranks of each of `nodes`, and the folders that its run writes to."""

    script: Path
    nproc: int
    nodes: int
    max_restarts: int
    out: Path
    logs: Path
    torchrun: list[str]  # torchrun's arguments
    command: str  # the same for a person, to be repeated in the project root (on each node)
    steps: int | None  # how many steps the script will take, where its flags say so


def prepare(
    script: str | Path,
    nproc: int,
    out: str | Path | None,
    flags: Mapping[str, Any],
    nodes: int = 1,
    max_restarts: int = 0,
) -> Job:
    """The job of a `launch` with these arguments; its folders exist afterwards.

    Raises:
        UserError: no such script, a flag that cannot be one, or a folder that cannot be used.
    """
    script = find_script(script)
    arguments = flag_words(flags)
    if out is None:
        out = _fresh_folder(str(flags.get("model") or script.stem))
    else:
        out = Path(os.path.abspath(ROOT / out))
        if holds_run(out) and flags.get("resume") is None:
            raise UserError(f"{shown(out)} already holds a run: choose another out, or resume it")
    logs = _fresh_logs(out)
    ranks = ["--nproc-per-node", str(nproc)]
    tries = ["--max-restarts", str(max_restarts)] if max_restarts else []
    if nodes == 1:
        start = hand = ["--standalone", *ranks, *tries]
        files = ["--tee", "3", "--log-dir", str(logs)]
    else:  # nodes.py adds how they meet and where each one's logs go
        start, files = ranks, ["--tee", "3"]
        hand = ["--nnodes", str(nodes), *ranks, *tries, *MEET]
    program = [from_root(script), *arguments]
    steps = flags.get("steps")
    return Job(
        script=script,
        nproc=nproc,
        nodes=nodes,
        max_restarts=max_restarts,
        out=out,
        logs=logs,
        torchrun=[*start, *files, *program, "--out", from_root(out)],
        command=shorten(shlex.join(["torchrun", *hand, *program, "--out", shown(out)])),
        steps=steps if isinstance(steps, int) else None,
    )


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """A command line's words for flags by their names.

    Raises:
        UserError: a value that no flag can carry.
    """
    arguments = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (str, Real, Path)):
            arguments += [f"--{flag}", str(value)]
        elif isinstance(value, Iterable) and not isinstance(value, Mapping):
            arguments += [f"--{flag}", *map(str, value)]
        else:
            raise UserError(f"{name} is a {type(value).__name__}, which no flag can carry")
    return arguments


def environment(ranks: int, extra: Mapping[str, str] | None, threads: int | None) -> dict[str, str]:
    """What all `ranks` see: this process's variables, ours, and `extra`, which wins."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads or max(1, _cores() // ranks)),
        # threads that wait go to sleep: spinning costs ten times the time on cores that others use
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "PYTHONPATH": os.pathsep.join(path),  # helpers is found from any folder, installed or not
        "PYTHONUNBUFFERED": "1",  # the last line before a crash is the one that matters
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        **{name: str(value) for name, value in (extra or {}).items()},
    }


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_script(script: str | Path) -> Path:
    """The script's path, looked for in the project root, then in the current folder.

    Raises:
        UserError: there is none.
    """
    for folder in (ROOT, Path.cwd()):
        if (folder / script).is_file():
            return (folder / script).resolve()
    raise UserError(f"there is no script {script}, neither in the project nor in this folder")


def from_root(path: Path) -> str:
    """As short as it can be for a process that runs in the project root."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _fresh_folder(name: str) -> Path:
    """A new folder runs/<time>-<name>-<number>."""
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).name) or "run"
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return _first_free(ROOT / "runs", (f"{stamp}-{name}-{number}" for number in count(1)))


def _fresh_logs(out: Path) -> Path:
    """A new folder for the logs of this launch: logs, or logs-2 where a run is resumed."""
    return _first_free(out, chain(["logs"], (f"logs-{number}" for number in count(2))))


def _first_free(parent: Path, names: Iterable[str]) -> Path:
    """Makes the first folder of `names` that is not there yet."""
    for name in names:
        try:
            (parent / name).mkdir(parents=True)
            return parent / name
        except FileExistsError:
            if not parent.is_dir():
                break
        except NotADirectoryError:
            break
        except OSError as error:
            raise UserError(f"cannot write in {shown(parent)}: {error.strerror}") from None
    raise UserError(f"{shown(parent)} is a file, not a folder")
