"""Files of weights: find them, read a window of one tensor, write them in shards."""

import errno
import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, cannot_read, check_access, need, reason
from .names_in_files import Made, Recipe, recipes, shape_in_file
from .tensor_file import not_opened, open_tensor, stored_names
from .whole import replace_text

SHARD_BYTES = 4 * 2**30
SAMPLES, SAMPLE_BYTES = 256, 2**16  # of each file, for its digest
ROWS = 4096  # of two tensors, held against each other at a time
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# what a folder's weights are in: the first that is there, as transformers takes it
KINDS = (WHOLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class WeightFiles:
    """Which file of a folder holds each tensor.

    where: the name of a tensor's file.
    recipes: of a model's weights, what each is made of; of none where tensors are read as they are.
    """

    folder: Path
    where: dict[str, str]
    recipes: dict[str, Recipe] = field(default_factory=dict)

    @classmethod
    def find(cls, source: str) -> "WeightFiles | None":
        """The weights of a folder or a hub id; None where a folder holds a configuration alone.

        Raises:
            UserError: the index is broken or missing, or a file is not there.
        """
        check_access(source)
        folder = Path(source) if Path(source).is_dir() else _download(source)
        check_access(folder / KINDS[0])
        found = next((folder / name for name in KINDS if (folder / name).is_file()), None)
        if found is None:
            _check_nothing_there(folder)
            return None
        if found.suffix == ".json":
            return cls(folder, _read_index(found))
        return cls(folder, dict.fromkeys(stored_names(found), found.name))

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the files' names, sizes, heads, and samples between: other
        weights have others, and gigabytes are not read for it."""
        checksum = hashlib.sha256()
        for name in sorted(set(self.where.values())):
            try:
                _add_samples(checksum, self.folder / name)
            except OSError as error:
                raise cannot_read(self.folder / name, error) from None
        return checksum.hexdigest()[:12]

    def of(self, model: nn.Module) -> "WeightFiles":
        """The same files, asked by the names of the weights of a whole model.

        Raises:
            UserError: transformers cannot make anything of the names in the files, or a layer
                would compute without a tensor of theirs.
        """
        try:
            return replace(self, recipes=recipes(model, self.where))
        except UserError:
            raise
        except ValueError as error:
            raise UserError(
                f"{self.folder.name} has weights under names that cannot be read: {error}"
            ) from None

    def has(self, name: str) -> bool:
        return name in (self.recipes or self.where)

    def read(
        self,
        names: Sequence[str],
        stored: Sequence[int],
        whole: Sequence[int],
        offset: Sequence[int],
        shape: Sequence[int],
    ) -> Tensor:
        """The window at `offset` of `shape` of the first of `names` that there is.

        Args:
            stored: the shape that it must have in the files.
            whole: the shape of the same elements in the model, in which the window lies.

        Raises:
            UserError: none of the names is there, it has another shape, or cannot be made of what
                is there.
        """
        name = next((n for n in names if self.has(n)), None)
        if name is None:
            raise UserError(f"{self.folder.name} holds no weight {names[0]!r}: is it this model's?")
        tensor = self._tensor(name)
        if (found := shape_in_file(tensor)) != list(stored):
            raise UserError(
                f"{name} in {self.folder.name} has shape {found}, the configuration "
                f"says {list(stored)}"
            )
        window = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
        if list(stored) == list(whole):
            return tensor[window]
        if stored[0] == whole[0]:  # rows are rows in both: read these alone
            rows = tensor[window[0]]
            return rows.reshape(-1, *whole[1:])[(slice(None), *window[1:])]
        return tensor[:].reshape(tuple(whole))[window]

    def check_tied(self, names: Sequence[str]) -> None:
        """Raise a UserError if the files hold one weight under several of these names, and not the
        same."""
        first, *others = [name for name in names if self.has(name)] or [""]
        for other in others:
            if not _same(self._tensor(first), self._tensor(other)):
                raise UserError(
                    f"{first} and {other} in {self.folder.name} differ, and its configuration ties "
                    "them: say there that tie_word_embeddings is false"
                )

    def _tensor(self, name: str) -> Any:
        """Something that can be indexed by slices and then reads only what these need."""
        recipe = self.recipes.get(name)
        if recipe is not None and recipe.converter is not None:
            return Made(name, recipe, self.open, self.folder.name)
        stored = name if recipe is None else recipe.tensors[0][0]
        return self.open(stored)

    def open(self, stored: str) -> Any:
        return open_tensor(self.folder / self.where[stored], stored)


def _same(one: Any, other: Any) -> bool:
    """Have two tensors the same shape and values? They are read a few rows at a time."""
    shape = shape_in_file(one)
    if shape != shape_in_file(other):
        return False
    starts = range(0, shape[0], ROWS) if shape else ()
    return all(torch.equal(one[at : at + ROWS], other[at : at + ROWS]) for at in starts)


def _add_samples(checksum: Any, path: Path) -> None:
    size = path.stat().st_size
    checksum.update(f"{path.name} {size}".encode())
    with path.open("rb") as file:
        for place in range(0, size, max(SAMPLE_BYTES, size // SAMPLES)):
            file.seek(place)
            checksum.update(file.read(SAMPLE_BYTES))


def _download(hub_id: str) -> Path:
    """The local copy of a hub model's configuration and weights, fetched if need be."""
    hub = need("huggingface_hub", "hf")
    try:
        files = hub.list_repo_files(hub_id) if not hub.constants.HF_HUB_OFFLINE else []
        kind = "*.safetensors*" if any("safetensors" in f for f in files) else "pytorch_model*"
        patterns = ["config.json", kind] if files else None
        return Path(hub.snapshot_download(hub_id, allow_patterns=patterns))
    except Exception as error:
        # the hub's client raises many kinds; each means that the model could not be had
        raise UserError(f"could not fetch {hub_id!r} from the hub: {reason(error)}") from None


def _check_nothing_there(folder: Path) -> None:
    """Raise a UserError if there are weights that cannot be taken for a whole model's."""
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        if not path.exists():
            raise UserError(
                f"{path.name} in {folder.name} leads nowhere: copy or download it again"
            )
        if path.name.startswith(("model-", "pytorch_model-")):
            raise UserError(
                f"{folder.name} has {path.name} and no index of its shards: copy that too"
            )


def _read_index(index: Path) -> dict[str, str]:
    where: Any = None
    try:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            where = json.loads(index.read_text())["weight_map"]
    except OSError as error:
        raise cannot_read(index, error) from None
    files_named = isinstance(where, dict) and all(isinstance(file, str) for file in where.values())
    if not where or not files_named:
        raise UserError(f"{index.name} in {index.parent.name} is no index of weights")
    files = sorted(set(where.values()))
    if outside := [file for file in files if not file or Path(file).name != file]:
        raise UserError(
            f"{index.name} in {index.parent.name} names {outside[0]!r}, no file of that folder"
        )
    missing = [file for file in files if not _is_file(index.parent / file)]
    if missing:
        raise UserError(f"{index.parent.name} lacks {missing[0]}: copy or download it again")
    for file in files:
        if error := not_opened(index.parent / file):
            raise cannot_read(index.parent / file, error)
    return where


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that no disk takes
        return False


def write_weights(tensors: Iterable[tuple[str, Tensor]], folder: Path | None) -> None:
    """Write tensors as safetensors files of at most `SHARD_BYTES`, with an index where several.

    With no folder the tensors are only asked for: making one whole may need every rank.
    """
    shard: dict[str, Tensor] = {}
    held = 0
    written: list[Path] = []
    for name, tensor in tensors:
        if folder is None:
            continue
        if held and held + tensor.nbytes > SHARD_BYTES:
            written.append(_write_shard(shard, folder, len(written)))
            shard.clear()  # before the next tensor is copied: one shard is held at a time
            held = 0
        shard[name] = tensor.detach().cpu().contiguous()
        held += tensor.nbytes
    if folder is not None:
        written.append(_write_shard(shard, folder, len(written)))
        _name_shards(written)


def _write_shard(tensors: dict[str, Tensor], folder: Path, number: int) -> Path:
    safetensors = need("safetensors", "hf")
    from safetensors.torch import save_file

    path = folder / f"part-{number}.safetensors"
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        full = "No space left" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error), str(path)) from None
    return path


def _name_shards(written: list[Path]) -> None:
    """Give the files the names that transformers looks for, and take away those that the folder
    had. At no moment is a reader given files of both."""
    folder = written[0].parent
    before = [folder / INDEX, *folder.glob("model-*-of-*.safetensors")]
    if len(written) == 1:
        written[0].replace(folder / WHOLE)
    else:
        before.append(folder / WHOLE)
    for path in before:
        path.unlink(missing_ok=True)
    if len(written) == 1:
        return
    where = {}
    for number, path in enumerate(written, start=1):
        name = f"model-{number:05d}-of-{len(written):05d}.safetensors"
        where |= dict.fromkeys(stored_names(path), name)
        path.replace(folder / name)
    index = {"metadata": {}, "weight_map": where}
    replace_text(folder / INDEX, json.dumps(index, indent=1))
