"""Why a run failed: the first failing rank's own words, out of what torchrun left on disk."""

import contextlib
import json
import re
import signal
from pathlib import Path
from typing import Any

from helpers.lab.paths import shorten, shown

ARGUMENTS_WRONG = 2  # the exit code of a script that refuses its arguments, argparse's too

# What a rank says when a peer of it has gone: true, but not the cause.
_SECONDARY = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|likely closed)|broken pipe"
    r"|closed by (the )?(remote )?peer|ncclRemoteError|communicator was aborted"
    r"|failed to recv, got 0 bytes|DistNetworkError",
    re.IGNORECASE,
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch puts it before each line of a traceback
_NATIVE_FRAME = re.compile(
    r"frame #\d+: |Exception raised from "
)  # of C++, dozens one below another
_SIGNAL_HINTS = {
    "SIGKILL": "; out of memory is the usual cause",
    "SIGSEGV": "; a crash in native code",
    "SIGABRT": "; native code gave up",
    "SIGBUS": "; shared memory that is full is the usual cause",
    "SIGTERM": "; something outside this run ended it",
}


class RunFailed(RuntimeError):
    """A launched run did not end well.

    Attributes:
        path: the run's folder, with the whole logs in it.
        rank: the first rank that failed; None where no single one did (a timeout, say).
        exit_code: that rank's exit code, negative for a signal; torchrun's where rank is None.
        message: what there is to say, as printed.
    """

    def __init__(
        self, message: str, *, path: Path, rank: int | None = None, exit_code: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.rank = rank
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """In a notebook: the rank's words only, without the frames of the launcher above them."""
        return [f"RunFailed: {self.message}"]


def explain(path: Path, logs: Path, exit_code: int, tail: list[str]) -> RunFailed:
    """The failure of a run that ended with `exit_code`, from its log folder.

    `tail` is the end of the merged output, for a torchrun that failed before any rank did.
    """
    ranks = _read_failures(logs)
    lost = next((failure for failure in ranks if "node" in failure), None)
    if lost:
        words = f"the agent of node {lost['node']} was {_signal_words(lost['exit_code'])}"
        words += f", and no restart was left\nWhole logs: {shown(logs)}"
        return RunFailed(words, path=path, exit_code=lost["exit_code"])
    if not ranks:
        how = f"ended with code {exit_code}"
        if exit_code > 128:
            how = f"was {_signal_words(128 - exit_code)}"
        words = [f"torchrun {how} before any rank failed", *_under("Last lines:", tail)]
        return RunFailed(shorten("\n".join(words)), path=path, exit_code=exit_code)
    first = min(ranks, key=lambda failure: _order(failure, logs))
    rank, code = first["rank"], first["exit_code"]
    if first["closed"] and not _order(first, logs)[0]:
        code = 1  # Python's of an error that was recorded; torchrun's signal came before it
    if code == ARGUMENTS_WRONG:
        words = _refusal([first, *ranks], logs)
    else:
        words = _own_words(rank, code, logs) + f"\nWhole logs: {shown(logs)}"
    return RunFailed(words, path=path, rank=rank, exit_code=code)


def rank_folder(logs: Path, rank: int) -> Path | None:
    """Where torchrun put the stdout.log, stderr.log and error.json of `rank` at its last start."""
    for node in sorted(logs.glob("node-*")) or [logs]:
        started = attempts(node)
        if not started:
            return None
        ranks = [folder for folder in started[-1].iterdir() if folder.is_dir()]
        if rank < len(ranks):
            return started[-1] / str(rank)
        rank -= len(ranks)  # each node counts its own from 0
    return None


def attempts(logs: Path) -> list[Path]:
    """torchrun's folders, one for each start of a node's ranks, the first one first."""
    return sorted(logs.glob("**/attempt_*"), key=lambda folder: folder.stat().st_mtime_ns)


def last_lines(path: Path, count: int, most_bytes: int = 64_000) -> list[str]:
    """The last `count` non-empty lines of a text file; none where there is no file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def _read_failures(logs: Path) -> list[dict[str, Any]]:
    """Of all agents (torchrun_agent.py), and of a node that was lost (local_nodes.py)."""
    failures = []
    for path in sorted(logs.glob("**/failures.json")):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(path.read_text())
            failures += filter(_is_failure, found if isinstance(found, list) else [])
    return failures


def _is_failure(entry: Any) -> bool:
    """Is this what an agent writes of a rank, or of a node that was lost?"""
    if not isinstance(entry, dict) or not _is_whole(entry.get("exit_code")):
        return False
    of_rank = _is_whole(entry.get("rank")) and isinstance(entry.get("closed"), bool)
    return of_rank or _is_whole(entry.get("node"))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _order(failure: dict[str, Any], logs: Path) -> tuple[bool, bool, float]:
    """Sorts the cause before its consequences.

    torchrun's own times are whole seconds, and a peer notices within milliseconds. So: ranks that
    torchrun closed before they said why come last, then ranks that only lost a connection, then the
    time of the words.
    """
    folder = rank_folder(logs, failure["rank"])
    if folder is None:
        return failure["closed"], False, float("inf")
    error, stderr = folder / "error.json", folder / "stderr.log"
    spoken = error if error.exists() else stderr
    recorded = _recorded(folder)
    said = recorded or "\n".join(last_lines(stderr, 20))
    when = spoken.stat().st_mtime_ns if spoken.exists() else float("inf")
    lost = bool(_SECONDARY.search(said))
    return failure["closed"] and (lost or not recorded), lost, when


def _refusal(ranks: list[dict[str, Any]], logs: Path) -> str:
    """The one line of a script that refuses its arguments; often only the first rank says it."""
    for failure in ranks:
        folder = rank_folder(logs, failure["rank"])
        lines = last_lines(folder / "stderr.log", 1) if folder else []
        if lines and failure["exit_code"] == ARGUMENTS_WRONG:
            return shorten(lines[0].removeprefix("error: "))
    return "the script refused its arguments (exit code 2) and did not say why"


def _own_words(rank: int, code: int, logs: Path) -> str:
    folder = rank_folder(logs, rank)
    lines = last_lines(folder / "stderr.log", 200) if folder else []
    lines = [_RANK_PREFIX.sub("", line) for line in lines]
    recorded = _recorded(folder) if folder else None
    if recorded:
        return shorten(f"rank {rank} failed: {_error_line(recorded.splitlines())}\n{recorded}")
    if code < 0:
        words = f"rank {rank} was {_signal_words(code)}"
        return shorten("\n".join([words, *_under("Its last lines:", _last_words(lines))]))
    traceback = _last_traceback(lines)
    if traceback:
        return shorten("\n".join([f"rank {rank} failed: {_error_line(traceback)}", *traceback]))
    words = f"rank {rank} ended with code {code}"
    if not lines:
        return f"{words} and wrote nothing to stderr"
    return shorten("\n".join([f"{words}:", *lines[-10:]]))


def _last_words(lines: list[str]) -> list[str]:
    """Of a rank that a signal ended: what it said before the frames of native code. Python's own
    report of a crash is read from its top, where the innermost frame is."""
    said = [line for line in lines if not _NATIVE_FRAME.match(line)]
    crash = [i for i, line in enumerate(said) if line.startswith("Fatal Python error")]
    return said[crash[-1] :][:10] if crash else said[-10:]


def _under(title: str, lines: list[str]) -> list[str]:
    return [title, *lines] if lines else []


def _signal_words(code: int) -> str:
    """'killed by signal 9 (SIGKILL); ...' for -9."""
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"killed by signal {-code}"
    return f"killed by signal {-code} ({name}){_SIGNAL_HINTS.get(name, '')}"


def _recorded(folder: Path) -> str | None:
    """The traceback that torch's @record wrote, without the frames of @record itself."""
    try:
        message = json.loads((folder / "error.json").read_text())["message"]
        if isinstance(message, str):
            return message
        traceback = message.get("extraInfo", {}).get("py_callstack") or message.get("message")
        return _without_record(traceback.rstrip().splitlines()) if traceback else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # a program's own words
        return None


def _without_record(lines: list[str]) -> str:
    kept, inside = [], False
    for line in lines:
        if line.startswith('  File "'):
            inside = "distributed/elastic/multiprocessing/errors" in line
        elif not line.startswith("    "):
            inside = False
        if not inside:
            kept.append(line)
    return "\n".join(kept)


def _error_line(traceback: list[str]) -> str:
    """'ValueError: ...', the first line below the last frame. A message may go on indented."""
    frames = [number for number, line in enumerate(traceback) if line.startswith('  File "')]
    after = traceback[frames[-1] + 1 :] if frames else traceback
    return next((line for line in after if not line.startswith("  ")), traceback[-1])


def _last_traceback(lines: list[str]) -> list[str]:
    """From the last traceback's first line on; a chained one from the first of its chain."""
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    if not starts:
        return []
    start = starts[-1]
    chained = ("During handling of the above", "The above exception was the direct")
    while len(starts) > 1 and any(x.startswith(chained) for x in lines[starts[-2] : starts[-1]]):
        starts.pop()
        start = starts[-1]
    return lines[start:]
