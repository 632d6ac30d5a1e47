"""Checkpoints of a run: sharded, atomic, checked, and loadable under another plan.

    checkpoints/step-00000010/          whole, or not there: it is written as .partial and renamed
        __<rank>_*.distcp, .metadata    parameters and Adam's moments (torch.distributed.checkpoint)
        rank-<rank>.pt                  that rank's random streams
        manifest.json                   step, plan, what must not change, SHA-256 of every file

A tensor is stored with its place in the whole, under its Hugging Face name, so a rank of any plan
reads just what it holds, whoever wrote it.
"""

import hashlib
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from helpers.engine.errors import UserError
from helpers.engine.tensor import local
from helpers.engine.trainer import Trainer, over_ranks

STEP = re.compile(r"step-(\d{8})")
MANIFEST = "manifest.json"


class Checkpoints:
    """The checkpoints of one run, in `folder`.

    Args:
        keep: how many of the newest stay.
        background: write while training goes on; each becomes visible once it is whole.
        fixed: facts of the run that a resumed one must share (batch size, seed, data, ...).
    """

    def __init__(
        self,
        folder: Path,
        keep: int = 2,
        background: bool = False,
        fixed: dict[str, Any] | None = None,
    ) -> None:
        self.folder, self.keep, self.background = folder, keep, background
        self.fixed = fixed or {}
        # a group of its own: its messages must not mix with those of training
        self.group = dist.new_group(backend="gloo") if background else None
        self.pending: tuple[Any, Path, dict[str, Any]] | None = None

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint of the trainer's state. Every rank must call it."""
        self.finish()
        draft = self.folder / f"step-{trainer.steps_done:08d}.partial"
        if dist.get_rank() == 0:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        dist.barrier()
        torch.save(random_streams(), draft / f"rank-{dist.get_rank()}.pt")
        facts = {
            "step": trainer.steps_done,
            "plan": trainer.plan.to_dict(),
            "scaler": asdict(trainer.scaler),
            "fixed": self.fixed,
        }
        state = state_of(trainer)
        if self.background:
            state = {name: _alone(tensor) for name, tensor in state.items()}
            future = dcp.async_save(state, checkpoint_id=draft, process_group=self.group)
            self.pending = (future, draft, facts)
            return
        dcp.save(state, checkpoint_id=draft)
        self._publish(draft, facts)

    def poll(self) -> None:
        """Make a checkpoint visible that the background has finished on every rank."""
        if self.pending and all(over_ranks(self.pending[0].done())):
            self.finish()

    def finish(self) -> None:
        """Wait for a checkpoint that is being written."""
        if self.pending is None:
            return
        future, draft, facts = self.pending
        self.pending = None
        future.result()
        self._publish(draft, facts)

    def _publish(self, draft: Path, facts: dict[str, Any]) -> None:
        """Check in every file, and rename: from here on the checkpoint counts."""
        rank = dist.get_rank()
        mine = [*draft.glob(f"__{rank}_*"), draft / f"rank-{rank}.pt"]
        sums = over_ranks({path.name: sha256(path) for path in mine})
        if rank == 0:
            files = {name: digest for one in sums for name, digest in one.items()}
            files[".metadata"] = sha256(draft / ".metadata")
            manifest = facts | {"files": dict(sorted(files.items()))}
            (draft / MANIFEST).write_text(json.dumps(manifest, indent=1))
            final = draft.with_suffix("")
            shutil.rmtree(final, ignore_errors=True)
            draft.rename(final)
            for old in found(self.folder)[: -self.keep]:
                shutil.rmtree(old)
        dist.barrier()

    def load(self, trainer: Trainer, path: Path) -> None:
        """Put a checkpoint's state into a trainer of any plan. Every rank must call it.

        Random streams go on where they were under the same plan; under another they start anew.

        Raises:
            UserError: a file is damaged or missing, or the run differs in what must not change.
        """
        manifest = check(path, self.fixed)
        state = state_of(trainer)
        dcp.load(state, checkpoint_id=path)
        trainer.steps_done = manifest["step"]
        updates = manifest["step"] - manifest["scaler"]["skipped"]
        for moments in trainer.optimizer.state.values():
            moments["step"].fill_(updates)
        for name, value in manifest["scaler"].items():
            setattr(trainer.scaler, name, value)
        trainer.data.publish()
        if manifest["plan"] == trainer.plan.to_dict():
            set_random_streams(torch.load(path / f"rank-{dist.get_rank()}.pt", weights_only=True))


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """The trainer's tensors by name, as they lie in the whole; loading writes into them.

    Parts that are empty here (fewer rows than ranks) have nothing to store or to load.
    """
    state: dict[str, Tensor] = {}
    for part in trainer.parts:
        if not part.tensor.numel():
            continue
        values = part.tensor.detach()
        moments = trainer.optimizer.state[part.tensor]
        if not moments:  # Adam makes them in its first step; a resumed run needs them before
            moments["step"] = torch.zeros((), dtype=torch.float32, device=values.device)
            moments["exp_avg"] = torch.zeros_like(values)
            moments["exp_avg_sq"] = torch.zeros_like(values)
        state[part.name] = part.whole(values)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"{part.name}/{moment}"] = part.whole(moments[moment])
    return state


def _alone(tensor: Tensor) -> Tensor:
    """The tensor in memory of its own: async_save copies whole storages, and would copy all of a
    parameter for each rank's chunk of it."""
    part = local(tensor)
    if part.untyped_storage().nbytes() == part.numel() * part.element_size():
        return tensor
    return tensor.clone()


def random_streams() -> dict[str, Tensor]:
    streams = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def set_random_streams(streams: dict[str, Tensor]) -> None:
    torch.set_rng_state(streams["cpu"])
    if "cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams["cuda"])


def found(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if STEP.fullmatch(path.name))


def pick(source: Path) -> Path:
    """The checkpoint meant by a run's folder (its newest) or a checkpoint's own.

    Raises:
        UserError: there is none.
    """
    if STEP.fullmatch(source.name) and source.is_dir():
        return source
    there = found(source / "checkpoints") or found(source)
    if not there:
        raise UserError(f"{source} holds no checkpoint: nothing to resume")
    return there[-1]


def check(path: Path, fixed: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are as they were written.

    Raises:
        UserError: a file is damaged or missing (the checkpoint before it is offered), or the run
            differs in a fact that must not change.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files = manifest["files"]
    except (OSError, ValueError, KeyError):
        raise UserError(f"{path} has no readable {MANIFEST}{_before(path)}") from None
    for name, digest in files.items():
        if not (path / name).is_file():
            raise UserError(f"{path} lacks {name}{_before(path)}")
        if sha256(path / name) != digest:
            raise UserError(f"{path / name} is damaged: its checksum differs{_before(path)}")
    for fact, value in manifest["fixed"].items():
        if fact in fixed and fixed[fact] != value:
            raise UserError(
                f"the checkpoint was made with {fact} {value}, this run has {fixed[fact]}"
            )
    return manifest


def _before(path: Path) -> str:
    """Words that offer the newest checkpoint before a damaged one."""
    older = [other for other in found(path.parent) if other.name < path.name]
    return f"; the one before it is {older[-1]}" if older else "; there is none before it"


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
