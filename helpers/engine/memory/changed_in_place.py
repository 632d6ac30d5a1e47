"""What a backward needs, changed in place since its forward saved it: the gradient would be wrong.

torch counts a tensor's changes and raises an error, but not where hooks keep what is saved, as in
offloading and in the second run of what is recomputed. Here both count by themselves.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError


def refuse_changed() -> None:
    """Raise a UserError that says what happened and what to do."""
    raise UserError(
        "a tensor that the backward needs was changed in place after the forward had saved it, "
        "so gradients would be wrong: let the model, or the hook on it, make a new one, as by "
        "x * 2 in place of x.mul_(2)"
    ) from None


@contextmanager
def none_changed() -> Iterator[None]:
    """Around a second run, inside the hooks by which torch's checkpoint takes what it saves: raise
    a UserError where the run changes what it has saved. Nothing lives longer for it."""
    taken, unpack = torch._C._autograd._top_saved_tensors_default_hooks(True)
    saved: list[tuple[weakref.ref, int]] = []

    @torch._dynamo.disable  # as torch's own hook there is: a compiled block would look into it
    def pack(tensor: Tensor) -> Any:
        kept = taken(tensor)
        if isinstance(kept, Tensor):
            saved.append((weakref.ref(kept), kept._version))
        return kept

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:  # torch leaves a run that has saved all by an exception
        if any(tensor()._version != version for tensor, version in saved if tensor() is not None):
            refuse_changed()
