"""What a launch will start, decided before anything is: program, flags, folders, environment."""

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.models.configurations import expanded
from helpers.lab.launch.flags import carried_words, from_words
from helpers.lab.machine.hardware import cores
from helpers.lab.paths import PACKAGES, ROOT, check_out, plain, shorten, shown
from helpers.lab.runs.run import holds_run

MEET = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:29400")  # nodes on this machine
LOOPBACK, LOOPBACK_DEVICE = "127.0.0.1", "lo0" if sys.platform == "darwin" else "lo"
LOG = "launch.log"  # all that the processes of a run write, in its folder of logs
OF_TORCHRUN = "PET_"  # its arguments as variables: those of a job that this process is a part of
TRAINING = "helpers.train"
TRAINING_SCRIPT = "scripts/train.py"  # the same, where the project's scripts are


@dataclass(frozen=True)
class Program:
    """What every rank runs: a script, or a module.

    name: train.py, or helpers.train.
    label: what a run's folder is called after it.
    words: of torchrun's command line: the script's path, or -m and the module's name.
    """

    name: str
    label: str
    words: tuple[str, ...]

    @property
    def trains(self) -> bool:
        """Whether it ends with a summary.json that says whether it is done."""
        return self.name in (Path(TRAINING_SCRIPT).name, TRAINING)


@dataclass(frozen=True)
class Job:
    """A program on `nproc` ranks of each of `nodes`, and the folders that its run writes to.

    words: the program's own, of its command line.
    """

    program: Program
    words: tuple[str, ...]
    nproc: int
    nodes: int
    max_restarts: int
    out: Path
    logs: Path

    @property
    def flags(self) -> dict[str, Any]:
        return from_words(self.words)

    @property
    def steps(self) -> int | None:
        """How many the program will take, where its flags say so."""
        steps = self.flags.get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def torchrun(self) -> list[str]:
        """torchrun's arguments; local_nodes.py adds where nodes meet and leave their logs."""
        if self.nodes > 1:
            return [*self._ranks, "--tee", "3", *self.rank_words]
        files = ["--tee", "3", "--log-dir", str(self.logs)]
        here = ["--standalone", "--local-addr", LOOPBACK]
        return [*here, *self._ranks, *self._tries, *files, *self.rank_words]

    @property
    def rank_words(self) -> list[str]:
        """Every rank's command line, after Python's own."""
        return [*self.program.words, *self.words, "--out", from_root(self.out)]

    @property
    def command(self) -> str:
        """The same for a person, to be repeated in the project root (on each node)."""
        program = [*self.program.words, *self.words, "--out", shown(self.out)]
        if self.nodes > 1:
            start = ["--nnodes", str(self.nodes), *self._ranks, *self._tries, *MEET]
        else:
            start = ["--standalone", *self._ranks, *self._tries]
        return shorten(shlex.join(["torchrun", *start, *program]))

    @property
    def _ranks(self) -> list[str]:
        return ["--nproc-per-node", str(self.nproc)]

    @property
    def _tries(self) -> list[str]:
        return ["--max-restarts", str(self.max_restarts)] if self.max_restarts else []


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
        UserError: no such program, a flag that cannot be one, or a folder that cannot be used.
    """
    program = find_program(script)
    words = tuple(carried_words(flags))
    if out is None:
        out = _fresh_folder(str(flags.get("model") or program.label))
    else:
        check_out(out)
        out = Path(os.path.abspath(ROOT / expanded(out)))
        if ROOT.is_relative_to(out):
            raise UserError(f"out is {str(out)!r}, which holds the project: name a folder in it")
        if holds_run(out) and flags.get("resume") is None:
            raise UserError(f"{shown(out)} already holds a run: choose another out, or resume it")
    return Job(program, words, nproc, nodes, max_restarts, out, _fresh_logs(out))


def check_variables(variables: Any) -> None:
    """Raise a UserError if a process cannot have them beyond its own."""
    if variables is None:
        return
    if not isinstance(variables, Mapping):
        raise UserError(f"env is {variables!r:.40}: give variables, as {{'NAME': 'value'}}")
    for name, value in variables.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in f"{name}{value}":
            raise UserError(f"env has {name!r:.40}: {value!r:.40}, which no process can be given")


def environment(ranks: int, extra: Mapping[str, str] | None, threads: int | None) -> dict[str, str]:
    """What all `ranks` see: this process's variables, ours, and `extra`, which wins."""
    return {
        # a launch starts all ranks on this machine, and nobody else is to reach where they listen
        "GLOO_SOCKET_IFNAME": LOOPBACK_DEVICE,
        "NCCL_SOCKET_IFNAME": LOOPBACK_DEVICE,
        **{name: value for name, value in os.environ.items() if not name.startswith(OF_TORCHRUN)},
        "OMP_NUM_THREADS": str(threads or max(1, cores() // ranks)),
        # threads that wait go to sleep: spinning costs ten times the time on cores that others use
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
        "PYTHONPATH": _python_path(),
        "PYTHONUNBUFFERED": "1",  # the last line before a crash is the one that matters
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        **{name: str(value) for name, value in (extra or {}).items()},
    }


def _python_path() -> str:
    """helpers is found from any folder, installed or not."""
    installed = PACKAGES.name in ("site-packages", "dist-packages")
    folders = [ROOT] if installed else [ROOT, PACKAGES]
    given = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return os.pathsep.join([*dict.fromkeys(map(str, folders)), *given])


def find_program(script: str | Path) -> Program:
    """A script, looked for in the project root, then in the current folder; or a module.

    scripts/train.py is the module helpers.train, and that is run where there is no such script.

    Raises:
        UserError: there is none, or this is no name of one.
    """
    if not isinstance(script, (str, os.PathLike)):
        raise UserError(f"script is {script!r:.40}: give the name of a file or a module")
    for folder in (ROOT, Path.cwd()):
        if os.path.isfile(folder / script):  # which is no file, too, where no file can be so called
            path = (folder / script).resolve()
            return Program(path.name, path.stem, (from_root(path),))
    name = TRAINING if Path(script) == Path(TRAINING_SCRIPT) else str(script)
    if _is_module(name):
        return Program(name, name.rpartition(".")[2], ("-m", name))
    raise UserError(f"there is no script {script}, neither in the project nor in this folder")


def _is_module(name: str) -> bool:
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package above it
        return False


def from_root(path: Path) -> str:
    """As short as it can be for a process that runs in the project root."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _fresh_folder(name: str) -> Path:
    """A new folder runs/<time>-<name>-<number>."""
    name = plain(Path(name).name) or "run"
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
