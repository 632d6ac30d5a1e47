"""A function of the notebook on several ranks.

found = on_ranks(whole, torch.ones(2), nproc=2, ranks=ranks)    # by rank, what it returned
show_table(side_by_side(found), "On two ranks")
"""

import json
import linecache
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError, check_count, is_number, named_reason, need
from helpers.lab.calls.by_value import by_value
from helpers.lab.calls.program import CALL, ERROR, RESULT, WAITS
from helpers.lab.launch.launch import launch
from helpers.lab.launch.warm.ranks import Ranks
from helpers.lab.runs.failure_report import RunFailed

START_S = 60.0  # beyond the time of the call: interpreter and imports of cold ranks


class CallFailed(RunFailed):
    """A call did not return on every rank.

    Attributes:
        deadlock: ranks were still waiting when the time was over.
    """

    def __init__(self, message: str, path: Path, rank: int | None, deadlock: bool) -> None:
        super().__init__(message, path=path, rank=rank)
        self.deadlock = deadlock

    def _render_traceback_(self) -> list[str]:
        return [f"CallFailed: {self.message}"]


def on_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    nproc: int,
    ranks: Ranks | None = None,
    timeout_s: float = 60.0,
) -> list[Any]:
    """Call `function(*arguments)` on `nproc` ranks that are joined by gloo on the CPU.

    Args:
        function: also one that is defined in the notebook; it goes to the ranks by value, with
            what it uses. It learns its place by `dist.get_rank()`.
        ranks: warm ranks; without them, or with too few, each call starts its own.
        timeout_s: how long the call may take.

    Returns:
        What it returned, by rank.

    Raises:
        CallFailed: a rank raised, or ranks still waited when the time was over.
        UserError: the package cloudpickle is missing, a number is none, or what is called cannot
            be sent to another process.
    """
    need("cloudpickle", "notebooks")
    check_count("nproc", nproc)
    if not is_number(timeout_s) or not timeout_s > 0:
        raise UserError(f"timeout_s is {timeout_s!r:.40}: give a number of seconds above 0")
    if ranks is not None and not isinstance(ranks, Ranks):
        raise UserError(f"ranks is {ranks!r:.40}: give warm ranks, as ranks = Ranks(2)")
    try:
        call = by_value((function, arguments))
    except Exception as error:  # each type refuses in its own way
        raise UserError(f"this cannot be sent to the ranks: {named_reason(error)}") from None
    if ranks is not None and ranks.count < nproc:
        ranks = None
    with tempfile.TemporaryDirectory(prefix="call-") as folder:
        path = Path(folder)
        path.joinpath(CALL).write_bytes(call)
        try:
            launch(
                "helpers.lab.calls.program",
                nproc=nproc,
                ranks=ranks,
                out=path,
                show=False,
                timeout_s=timeout_s + START_S,
                limit=timeout_s,
            )
        except RunFailed as failed:
            raise _explained(failed, path, nproc, timeout_s) from None
        # written by ranks of our own, in a folder that only we can enter
        return [_result(path / RESULT.format(rank), rank) for rank in range(nproc)]


def _result(path: Path, rank: int) -> Any:
    if not path.exists():
        raise CallFailed(f"rank {rank} ended without a result", path, rank, False)
    try:
        return pickle.loads(path.read_bytes())
    except Exception as error:  # a class whose objects cannot be made again
        words = f"rank {rank} returned what cannot be read here: {named_reason(error)}"
        raise CallFailed(words, path, rank, False) from None


def _explained(failed: RunFailed, path: Path, nproc: int, timeout_s: float) -> CallFailed:
    ended = {
        rank: found
        for rank in range(nproc)
        if (found := _read(path / WAITS.format(rank)) or _read(path / ERROR.format(rank)))
    }
    if not ended:
        words = failed.message.partition("\nWhole logs: ")[0]  # which go with the folder
        return CallFailed(words, path, failed.rank, False)
    rank, found = min(ended.items(), key=lambda one: one[1]["at_ns"])
    if "type" in found:  # the others raise, or wait, because this one is gone
        words = f"rank {rank} raised {found['type']}: {found['words']}{_at(found)}"
        return CallFailed(words, path, rank, False)
    lines = [
        f"rank {rank} {'has returned' if found.get('returned') else f'waits{_at(found)}'}"
        for rank, found in ended.items()
    ]
    words = f"the ranks wait for each other, and nothing comes in {timeout_s:g} s: "
    return CallFailed(words + "; ".join(lines), path, None, True)


def _at(found: dict[str, Any]) -> str:
    if not found.get("line"):
        return ""
    text = linecache.getline(found["file"], found["line"]).strip()
    return f" in line {found['line']}" + (f", {text}" if text else "")


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None
