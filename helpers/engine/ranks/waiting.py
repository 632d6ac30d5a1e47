"""Which rank the others wait for, and what it is doing.

A rank that waits in vain learns so from its backend after the group's timeout, but not for whom. So
each rank has a thread that says, when one of them asks, what its main thread is doing. That is read
off the stack, so that it costs a step nothing: the line, the step, the module, the collective.
What is asked and said is text in the run's store.

NCCL ends a process by its own watchdog, without an exception. There torch's flight recorder, which
`distributed` turns on, leaves what each rank has called, and `torchfrtrace` says who is missing.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from linecache import getline
from pathlib import Path
from types import FrameType, TracebackType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, ProcessGroup, TCPStore
from torch.distributed.device_mesh import DeviceMesh

from ..errors import RankHung
from ..messages import shared_memory
from ..messages.boards import calls_on_board

LOOK_S = 0.5  # from one look for a question to the next
ANSWER_S = 3.0  # in which a rank that can answer does
MOST = 3  # ranks of which a line tells
ASKED, ANSWER = "hung/asked", "hung/answer/"
TIMED_OUT = "timed out", "timeout"  # what gloo says, in lower case
ENGINE = str(Path(__file__).parents[1]) + os.sep
BOARD = shared_memory.__file__
TORCH = str(Path(torch.__file__).parent) + os.sep
COLLECTIVES = dist.distributed_c10d.__file__
# of those, what no one calls by itself
INSIDE = {"wrapper", "take", "wait_for"}


@dataclass(frozen=True)
class Doing:
    """What a rank's main thread is doing.

    Attributes:
        at: file, line and function.
        waits: for other ranks, in `call` over the group's `ranks`.
        number: how many calls this rank has made on that group.
        within: axis, module or backward, step, micro-batch.
    """

    at: str
    waits: bool
    call: str = ""
    number: int | None = None
    ranks: tuple[int, ...] = ()
    within: tuple[str, ...] = ()


@contextmanager
def named(mesh: DeviceMesh) -> Iterator[None]:
    """In the block, what waits for another rank in vain raises a RankHung that names it.

    Args:
        mesh: over all ranks; its axes name the groups.
    """
    if dist.get_world_size() == 1:
        yield
        return
    wide = [axis for axis in mesh.mesh_dim_names if mesh[axis].size() > 1]
    axes = {mesh.get_group(axis).group_name: axis for axis in wide}
    witness = Witness(dist.distributed_c10d._get_default_store(), axes)
    witness.start()
    try:
        yield
    except RuntimeError as error:
        if not any(words in str(error).lower() for words in TIMED_OUT):
            raise
        raise RankHung(witness.ask(doing(_raised_in(error.__traceback__), axes))) from error
    finally:
        witness.over.set()


class Witness(threading.Thread):
    """Answers for this rank, over a connection of its own, until the run is over."""

    def __init__(self, store: dist.Store, axes: dict[str, str]) -> None:
        super().__init__(name="witness", daemon=True)
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        wait = timedelta(seconds=ANSWER_S)
        self.store = TCPStore(store.host, store.port, timeout=wait, wait_for_workers=False)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.main, self.axes = threading.get_ident(), axes
        self.waited: Doing | None = None
        self.over = threading.Event()

    def run(self) -> None:
        with suppress(RuntimeError):  # the store has gone with the process that hosts it
            while not self.over.wait(LOOK_S):
                if self.store.check([ASKED]):
                    self._answer()
                    return

    def _answer(self) -> None:
        what = self.waited or doing(_frames(sys._current_frames()[self.main]), self.axes)
        self.store.set(f"{ANSWER}{self.rank}", json.dumps(asdict(what)))

    def ask(self, waited: Doing) -> str:
        """The line that names the ranks waited for; `waited` is what this one did meanwhile."""
        self.waited = waited
        self.store.set(ASKED, "1")
        keys = [f"{ANSWER}{rank}" for rank in range(self.world)]
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until and not self.store.check(keys):
            time.sleep(0.1)
        said = {rank: key for rank, key in enumerate(keys) if self.store.check([key])}
        found = {rank: Doing(**json.loads(self.store.get(key))) for rank, key in said.items()}
        return in_words(found | {self.rank: waited}, self.world, waited)


def in_words(found: dict[int, Doing], world: int, asker: Doing) -> str:
    """One line about the ranks waited for, of what ranks that can answer do."""
    late = [rank for rank in range(world) if rank not in found or not found[rank].waits]
    others = [one for one in found.values() if one.waits and set(one.ranks) & set(late)]
    waits = next((one for one in (asker, *others) if set(one.ranks) & set(late)), asker)
    call = f"{waits.call} {waits.number or ''}".strip()
    call += f" ({', '.join(waits.within)})" if waits.within else ""
    if not late:
        return f"all ranks wait for each other, this one in {call} at {waits.at}"
    many = "s" if len(late) > 1 else ""
    parts = [
        f"{f'rank {rank}' if many else 'it'} "
        + (f"is in {found[rank].at}" if rank in found else "does not answer")
        for rank in late[:MOST]
    ]
    names = ", ".join(map(str, late[:MOST])) + (" .." if len(late) > MOST else "")
    have = "have" if many else "has"
    return f"rank{many} {names} {have} not joined {call}; {'; '.join(parts)}"


def doing(frames: list[FrameType], axes: dict[str, str]) -> Doing:
    """What a stack, innermost first, says of its thread; `axes` by the name of their group."""
    steps = [frame for frame in frames if not _is_library(frame)] or frames
    at = f"{Path(steps[0].f_code.co_filename).name}:{steps[0].f_lineno} ({steps[0].f_code.co_name})"
    if not _waits(frames):
        return Doing(at, False, within=tuple(_within(frames)))
    group = next(filter(None, map(_group, frames)), None) or dist.group.WORLD
    axis = "all ranks" if group.group_desc == "default_pg" else group.group_desc
    axis = axes.get(group.group_name, axis.removeprefix("mesh_"))
    ranks = tuple(dist.get_process_group_ranks(group))
    number = group._get_sequence_number_for_group() + calls_on_board(group)
    return Doing(at, True, _call(frames), number, ranks, (axis, *_within(frames)))


def _frames(frame: FrameType | None) -> list[FrameType]:
    """A stack, innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _raised_in(traceback: TracebackType | None) -> list[FrameType]:
    """The stack in which an exception was raised, innermost first."""
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return found[::-1]


def _is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((TORCH, sys.base_prefix, "<")) or "site-packages" in file


def _waits(frames: list[FrameType]) -> bool:
    """Is the innermost call one that waits for other ranks: torch's, or of a message's `wait`?"""
    file = frames[0].f_code.co_filename
    if file == BOARD:
        return True
    if file.startswith(ENGINE):
        return ".wait()" in getline(file, frames[0].f_lineno)
    return any(frame.f_code.co_filename == COLLECTIVES for frame in frames[:3])


def _group(frame: FrameType) -> ProcessGroup | None:
    """The process group that a function was called with or whose object has one."""
    given = frame.f_locals.values()
    held = (getattr(frame.f_locals.get(name), "group", None) for name in ("self", "ctx", "bucket"))
    return next((one for one in (*given, *held) if isinstance(one, ProcessGroup)), None)


def _call(frames: list[FrameType]) -> str:
    """The collective's name, as `all-reduce`; `message` for a send or receive of the pipeline."""
    for frame in frames[:5]:
        kind = getattr(frame.f_locals.get("self"), "kind", None)
        if isinstance(kind, str):
            return kind.replace("_", "-")
        own = frame.f_code.co_filename in (COLLECTIVES, BOARD)
        if own and frame.f_code.co_name not in INSIDE and not frame.f_code.co_name.startswith("_"):
            return frame.f_code.co_name.replace("_", "-")
    return "message"


def _within(frames: list[FrameType]) -> Iterator[str]:
    """The module or the backward, the step, the micro-batch."""
    own = [frame.f_locals.get("self") for frame in frames]
    trainer = next((one for one in own if hasattr(one, "steps_done")), None)
    modules = [one for one in own if isinstance(one, nn.Module)]
    root = getattr(trainer, "model", modules[-1] if modules else None)
    if modules and root is not None:
        yield next((name for name, one in root.named_modules() if one is modules[0]), "") or "model"
    elif any(frame.f_code.co_name == "_engine_run_backward" for frame in frames):
        yield "backward"
    if trainer is not None:
        yield f"step {trainer.steps_done + 1}"
    actions = (frame.f_locals.get("action", frame.f_locals.get("key")) for frame in frames)
    batch = next(filter(None.__ne__, (getattr(one, "microbatch", None) for one in actions)), None)
    if batch is not None:
        yield f"micro-batch {batch}"
