"""How the documents of a packed row are kept apart: one by one, or by a mask; tried, too."""

from functools import lru_cache
from typing import Any

import torch
from torch import nn

from ..errors import UserError
from ..models.objectives import build
from ..pipeline.micro_batches import MicroBatch, own_tokens, takes_mask
from ..tensor.boundary import Boundary
from ..tensor.partial_gradients import whole_gradients
from .admitted import LayOut, one_process
from .kinds import Kind, kind_of


def documents_one_by_one(
    model: nn.Module, length: int, device: torch.device, lay_out: LayOut
) -> bool:
    """Does attention take the documents of packed rows of this length one by one?

    Raises:
        UserError: the model does not keep them apart.
    """
    if model.kind is not None and not check_documents(model.kind, device.type, lay_out):
        return False
    return not takes_mask(model.config, length)


@lru_cache(maxsize=64)
@torch.enable_grad()  # who only evaluates has turned gradients off
def check_documents(kind: Kind, device: str, lay_out: LayOut) -> bool:
    """Can attention take the documents of packed rows one by one? Else a mask keeps them apart.

    Raises:
        UserError: neither gives the documents of a row what the class gives to each alone.
    """
    if kind.changed:
        raise UserError(f"{kind.changed}, which packing cannot be tried on: train it without")
    alone = Boundary()
    trial, lay_out_small = one_process(kind, device, lay_out, alone)
    for by_documents in (True, False):
        row = own_tokens(MicroBatch(**trial.packed), 0, 1, by_documents=by_documents)
        inputs = row.to(torch.device(device)).inputs(kind.config)
        with alone.working_on(None, row.rows):
            if trial.keeps_documents(lay_out_small, inputs, whole_gradients):
                return by_documents
    raise UserError(
        f"{kind.config.model_type} lets documents of a row see each other, however they are kept "
        "apart: train it without packing"
    )


def check_documents_of(config: Any, lay_out: LayOut) -> None:
    """The same of a model that is not made yet."""
    with torch.device("meta"):
        model = build(config, None, torch.float32)
    check_documents(kind_of(model), "cpu", lay_out)
