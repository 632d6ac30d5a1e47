"""Checkpoints of a run: sharded, atomic, checked, and loadable under another plan.

    checkpoints/step-00000010/          whole, or not there: it is written as .partial and renamed
        __<rank>_*.distcp, .metadata    parameters, Adam's moments, and buffers that files hold
        rank-<rank>.pt                  that rank's random streams
        manifest.json                   step, plan, what must not change, SHA-256 of every file,
                                        itself included

A tensor is stored with its place in the whole, under its Hugging Face name, so a rank of any plan
reads just what it holds, whoever wrote it.
"""

import io
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from ..errors import UserError, as_path, check_access, check_count
from ..precision.replay import random_streams, set_random_streams
from ..ranks import on_all_ranks
from ..tensor.shards import local
from .manifest import (
    METADATA,
    STEP,
    as_stored,
    list_checkpoints,
    read_manifest,
    sha256,
    step_of,
    to_disk,
    verify,
    write_manifest,
)
from .metadata_reader import CheckedReader
from .trainer_state import (
    adapters_of,
    alone,
    check_finite,
    check_same_tensors,
    fewer_updates,
    set_updates,
    state_of,
)


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written. One line; those before it are as they were."""


class Checkpoints:
    """The checkpoints of one run, in `folder`.

    Args:
        keep: how many of the newest stay.
        background: write, and check in, while training goes on; each becomes visible once it is
            whole.
        fixed: facts of the run that a resumed one must share (batch size, seed, data, ...).
        settings: facts that it may change, and is told of (learning rate, clip, ...).

    Raises:
        UserError: a fact is nothing that JSON holds.
    """

    def __init__(
        self,
        folder: str | Path,
        keep: int = 2,
        background: bool = False,
        fixed: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        check_count("keep", keep)
        self.folder, self.keep, self.background = as_path(folder), keep, background
        self.fixed, self.settings = as_stored(fixed or {}), as_stored(settings or {})
        # a group of its own: its messages must not mix with those of training
        self.group = dist.new_group(backend="gloo") if background else None
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.pending: tuple[Future[None], Draft] | None = None

    def save(self, trainer: Any) -> None:
        """Write a checkpoint of the trainer's state. Every rank must call it.

        Raises:
            CheckpointFailed: on every rank, where one could not write.
            Diverged: on every rank, where one's state is not finite: it would take a good one's
                place.
            UserError: the optimizer's state cannot be stored.
        """
        self.finish()
        state = state_of(trainer)
        check_finite(trainer, state)
        facts = {
            "step": trainer.steps_done,
            "plan": trainer.plan.to_dict(),
            "scaler": asdict(trainer.scaler),
            "fixed": self.fixed | adapters_of(trainer.model),
            "settings": self.settings,
        }
        folder = self.folder / f"step-{trainer.steps_done:08d}.partial"
        size_bytes = sum(local(tensor).nbytes for tensor in state.values())
        draft = Draft(folder, facts, random_streams(), fewer_updates(trainer), size_bytes)
        with self._whole_or_gone(draft):
            on_all_ranks(lambda: self._begin(folder) if dist.get_rank() == 0 else None)
            if not self.background:
                dcp.save(state, checkpoint_id=folder)
                self._publish(draft)
                return
            state = {name: alone(tensor) for name, tensor in state.items()}
            written = dcp.async_save(state, checkpoint_id=folder, process_group=self.group)
            self.pending = (self.thread.submit(self._publish_after, written, draft), draft)

    def _publish_after(self, written: Future[None], draft: "Draft") -> None:
        written.result()
        self._publish(draft)

    def finish(self) -> None:
        """Wait for a checkpoint that is being written.

        Raises:
            CheckpointFailed: on every rank, where one could not write.
        """
        if self.pending is None:
            return
        future, draft = self.pending
        self.pending = None
        with self._whole_or_gone(draft):
            future.result()

    def _begin(self, folder: Path) -> None:
        """An empty draft; what a killed run had not finished goes."""
        for stale in self.folder.glob("*.partial"):
            _remove(stale)
        folder.mkdir(parents=True)

    def _publish(self, draft: "Draft") -> None:
        """Check in every file, and rename: from here on the checkpoint counts."""
        by_rank = on_all_ranks(lambda: (draft.check_in(), draft.fewer_updates), self.group)
        files, fewer = ({k: v for one in of for k, v in one.items()} for of in zip(*by_rank))
        first = dist.get_rank() == 0
        on_all_ranks(lambda: self._rename(draft, files, fewer) if first else None, self.group)

    def _rename(self, draft: "Draft", files: dict[str, str], fewer: dict[str, int]) -> None:
        to_disk(draft.folder / METADATA)
        files[METADATA] = sha256(draft.folder / METADATA)
        manifest = draft.facts | {"files": dict(sorted(files.items())), "fewer_updates": fewer}
        write_manifest(draft.folder, manifest)
        final = draft.folder.with_suffix("")
        whole = list_checkpoints(self.folder)
        # later ones are of a run that this one has left by going on from an earlier checkpoint
        later = [path for path in whole if step_of(path) > step_of(final)]
        before = [path for path in whole if step_of(path) < step_of(final)]
        if final in whole:
            _drop(final)
        to_disk(draft.folder)
        draft.folder.rename(final)
        to_disk(self.folder)
        for path in [*later, *[*before, final][: -self.keep]]:
            _drop(path)

    @contextmanager
    def _whole_or_gone(self, draft: "Draft") -> Iterator[None]:
        """A draft that cannot be finished makes room, and the reason is said in one line."""
        try:
            yield
        except (OSError, dcp.CheckpointException) as error:
            reason = _reason(error, draft)
            if dist.get_rank() == 0:
                shutil.rmtree(draft.folder, ignore_errors=True)
            whole = list_checkpoints(self.folder)
            left = f"the newest whole one is {whole[-1]}" if whole else "there is no earlier one"
            raise CheckpointFailed(
                f"the checkpoint of step {draft.facts['step']} could not be written: {reason}; "
                f"{left}"
            ) from error

    def resume(self, trainer: Any) -> bool:
        """Go on from the newest whole checkpoint in the folder, where there is one. Every rank must
        call it.

        Returns:
            Was there one?

        Raises:
            UserError: as `load` does.
        """
        there = on_all_ranks(lambda: list_checkpoints(self.folder))[0]
        if there:
            self.load(trainer, there[-1])
        return bool(there)

    def load(self, trainer: Any, path: str | Path) -> None:
        """Put a checkpoint's state into a trainer of any plan. Every rank must call it.

        Random streams go on where they were under the same plan; under another they start anew. So
        does the loss scale under another kind of precision.

        Raises:
            UserError: a file is damaged or missing, or the run differs in what must not change.
        """
        path = as_path(path)
        trainer.settle()  # nothing may arrive in what is read
        trainer.model.digest = None  # whatever the ranks began with, they go on with the same
        fixed = self.fixed | adapters_of(trainer.model)
        manifest = on_all_ranks(lambda: read_manifest(path, fixed))[0]
        names = list(manifest["files"])[dist.get_rank() :: dist.get_world_size()]
        on_all_ranks(lambda: verify(path, {name: manifest["files"][name] for name in names}))
        reader = CheckedReader(path, manifest["files"])
        # of what these refuse dcp.load would make an error of its own, or none
        stored = on_all_ranks(reader.read_metadata)[0].state_dict_metadata
        state = state_of(trainer, stored)
        check_same_tensors(path, {name: tuple(of.size) for name, of in stored.items()}, state)
        try:
            dcp.load(state, storage_reader=reader)
        except dcp.CheckpointException as error:
            raise UserError(f"{path} cannot be read: {_last_line(error)}") from None
        trainer.steps_done = manifest["step"]
        before = manifest["plan"]["precision"]
        trainer.scaler.go_on(manifest["scaler"], before, trainer.plan.precision)
        set_updates(trainer, manifest.get("fewer_updates") or {})
        trainer.data.publish()
        if manifest["plan"] == trainer.plan.to_dict():
            on_all_ranks(lambda: _go_on_drawing(path / f"rank-{dist.get_rank()}.pt"))


@dataclass(frozen=True)
class Draft:
    """A checkpoint that is being written: its folder, and this rank's share of what goes in."""

    folder: Path
    facts: dict[str, Any]
    streams: dict[str, Tensor]
    fewer_updates: dict[str, int]  # of this rank's parts, see trainer_state.py
    size_bytes: int  # of this rank's tensors

    def check_in(self) -> dict[str, str]:
        """Write this rank's random streams; the checksums of its files, by name."""
        rank = dist.get_rank()
        buffer = io.BytesIO()  # torch.save hides what is wrong with a file that it writes itself
        torch.save(self.streams, buffer)
        own_streams = self.folder / f"rank-{rank}.pt"
        own_streams.write_bytes(buffer.getbuffer())
        own = [*self.folder.glob(f"__{rank}_*"), own_streams]
        for path in own:
            to_disk(path)
        return {path.name: sha256(path) for path in own}


def _drop(checkpoint: Path) -> None:
    """Remove a checkpoint; a crash leaves no half of it under its name."""
    gone = checkpoint.with_suffix(".gone.partial")
    checkpoint.rename(gone)
    _remove(gone)


def _remove(path: Path) -> None:
    """A folder with all that is in it; of a link to one the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _reason(error: BaseException, draft: Draft) -> str:
    """Why a draft could not be written. Of a full disk torch says that a position is unexpected."""
    with suppress(OSError):  # of a folder that has gone
        free = shutil.disk_usage(draft.folder.parent).free
        if free < draft.size_bytes:
            return f"its disk is full, {free / 1e6:.1f} MB are left"
    return _last_line(error)


def _last_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _go_on_drawing(path: Path) -> None:
    """Put this rank's random streams where they were.

    Raises:
        UserError: the file holds none.
    """
    try:
        set_random_streams(torch.load(path, weights_only=True))
    except Exception as error:  # broken pickles fail in every way
        raise UserError(f"{path} holds no random streams: {_last_line(error)}") from None


def pick(source: str | Path) -> Path:
    """The checkpoint meant by a run's folder (its newest) or a checkpoint's own.

    Raises:
        UserError: there is none.
    """
    source = as_path(source)
    check_access(source)
    if STEP.fullmatch(source.name) and source.is_dir():
        return source
    whole = list_checkpoints(source / "checkpoints") or list_checkpoints(source)
    if not whole:
        raise UserError(f"{source} holds no checkpoint: nothing to resume")
    return whole[-1]
