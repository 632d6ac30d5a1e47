"""Reading a checkpoint's `.metadata`, which torch pickles, without running what is in it.

A pickle may name any function and call it. Here it may name the classes that tell where tensors
lie, and nothing else (Python's manual, pickle, "Restricting Globals"). Values that torch would
unpickle without that care (BytesStorageMetadata) are not among them: a checkpoint of this engine
holds tensors alone.
"""

import pathlib
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from ..errors import UserError
from .manifest import METADATA

CHECKPOINT = "torch.distributed.checkpoint."
CLASSES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (CHECKPOINT + "filesystem", "_StorageInfo"),
    (CHECKPOINT + "metadata", "ChunkStorageMetadata"),
    (CHECKPOINT + "metadata", "Metadata"),
    (CHECKPOINT + "metadata", "MetadataIndex"),
    (CHECKPOINT + "metadata", "StorageMeta"),
    (CHECKPOINT + "metadata", "TensorProperties"),
    (CHECKPOINT + "metadata", "TensorStorageMetadata"),
    (CHECKPOINT + "metadata", "_MEM_FORMAT_ENCODING"),
}
PATHS = {"pathlib", "pathlib._local"}  # where Pythons keep PosixPath


class CheckedReader(dcp.FileSystemReader):
    """torch's reader of a checkpoint's files, with a reader of its metadata that runs nothing.

    Args:
        files: names of the files that tensors may lie in.
    """

    def __init__(self, folder: Path, files: Collection[str]) -> None:
        super().__init__(folder)
        self._file, self._files = Path(folder) / METADATA, set(files)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        metadata = read_metadata(self._file)
        places = {
            str(getattr(info, "relative_path", "")) for info in metadata.storage_data.values()
        }
        if foreign := sorted(places - self._files):
            raise UserError(f"{self._file} names {foreign[0]}, which is no file of the checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def read_metadata(path: Path) -> Metadata:
    """What is in a `.metadata`.

    Raises:
        UserError: it is no metadata, or names anything but the classes of metadata.
    """
    try:
        with path.open("rb") as file:
            found = _Classes(file).load()
    except _Foreign as error:
        raise UserError(f"{path} is refused: it names {error}, no part of a checkpoint") from None
    except Exception as error:  # broken pickles fail in every way
        raise UserError(f"{path} is damaged: {type(error).__name__}") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise UserError(f"{path} is damaged: it holds no metadata")
    return found


class _Foreign(Exception):
    """A name that no metadata has."""


class _Classes(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in PATHS and name == "PosixPath":
            return pathlib.PurePosixPath
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in CLASSES:
            raise _Foreign(f"{module}.{name}")
        return super().find_class(module, name)
