"""One file of weights, safetensors or a pickle of torch's: the names in it, and its tensors."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError, cannot_read, need, reason


def stored_names(path: Path) -> list[str]:
    """The tensors in a file. Raises a UserError where it is broken or cannot be read."""
    if path.suffix == ".bin":
        return list(_load_pickle(path))
    return _of_safetensors(path, lambda file: list(file.keys()))


def open_tensor(path: Path, name: str) -> Any:
    """Something that can be indexed by slices and then reads only these from disk."""
    if path.suffix == ".bin":
        return _load_pickle(path)[name]
    return _of_safetensors(path, lambda file: file.get_slice(name))


def _of_safetensors(path: Path, ask: Callable[[Any], Any]) -> Any:
    safetensors = need("safetensors", "hf")
    try:
        return ask(safetensors.safe_open(path, framework="pt"))
    except safetensors.SafetensorError as error:
        raise UserError(f"{path.name} in {path.parent.name} is broken: {error}") from None
    except OSError as error:
        raise cannot_read(path, not_opened(path) or error) from None


def not_opened(path: Path) -> OSError | None:
    """Why a file cannot be opened. safetensors says of each such file that it is not there."""
    try:
        path.open("rb").close()
    except OSError as error:
        return error
    return None


def _load_pickle(path: Path) -> dict[str, Tensor]:
    try:
        new = zipfile.is_zipfile(path)  # torch before 1.6 wrote files of another kind
        found = torch.load(path, map_location="cpu", mmap=new, weights_only=True)
    except OSError as error:
        raise cannot_read(path, error) from None
    except Exception as error:  # broken pickles fail in every way
        said = f"{path.name} in {path.parent.name} cannot be read: {reason(error)}"
        raise UserError(said) from None
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise UserError(f"{path.name} in {path.parent.name} holds no weights by name but {kind}")
    for name, value in found.items():
        if not isinstance(name, str) or not _is_dense(value):
            raise UserError(
                f"{path.name} in {path.parent.name} holds {name!r:.80}, which is no dense tensor "
                "by a name: save the model's state_dict() alone"
            )
    return found


def _is_dense(value: object) -> bool:
    """Is this a tensor whose values stand in memory, each at its place?"""
    if not isinstance(value, Tensor) or value.is_nested or value.is_meta:
        return False
    return value.layout == torch.strided
