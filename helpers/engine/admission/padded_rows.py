"""Rows that begin with padding, the last of which predicts their first token: tried, too.

Such padding sees no token. What attention gives it then is each class's own accident: the mean of
all values, of those before it, or zero.
"""

import copy
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..models.objectives import IGNORED
from ..tensor.boundary import Boundary
from ..tensor.partial_gradients import whole_gradients
from .admitted import LayOut, one_process
from .kinds import Kind
from .trial import TOLERANCE, gradients_of, wrong_gradient

PADDING = 3  # tokens before each row that is tried


def check_padding(
    model: nn.Module, labels: Tensor, mask: Any, device: str, lay_out: LayOut
) -> None:
    """Raise a UserError if padding that sees no token predicts one, and not as in the model's own
    class.

    Args:
        labels: [batch, seq]; mask: the same, or a mask of another kind, or none.
        device: its type.
    """
    objective = model.objective
    of_tokens = isinstance(mask, Tensor) and mask.shape == labels.shape
    if model.kind is None or not of_tokens or not objective.shift:
        return
    predicted = objective.targets(labels) != IGNORED
    sees_none = mask.cumsum(1)[:, : -objective.shift] == 0
    if not (predicted & sees_none).any():
        return
    if not is_exact(model.kind, device, lay_out):
        raise UserError(
            f"{model.kind.config.model_type} would not be exact where padding before a row "
            f"predicts its first token: label that {IGNORED}, or pad rows at their end"
        )


@lru_cache(maxsize=64)
@torch.enable_grad()  # who only evaluates has turned gradients off
def is_exact(kind: Kind, device: str, lay_out: LayOut) -> bool:
    """Has a small copy the class's loss and gradients in float32, where numbers that stand for a
    mask swallow scores?"""
    if kind.attention not in (None, "eager", "sdpa"):  # kernels that leave padding out
        return False
    trial, lay_out_small = one_process(kind, device, lay_out, Boundary())
    truth = trial.truth
    own = copy.deepcopy(truth.model).float()
    laid_out = lay_out_small(copy.deepcopy(own), 0)
    if kind.attention == "eager":  # the formula itself, where a kernel may give something else
        own = type(own)._from_config(own.config, attn_implementation="eager").float().to(device)
        own.load_state_dict(truth.model.state_dict())
    ids = truth.batch["input_ids"]
    mask = torch.ones_like(ids)
    mask[:, :PADDING] = 0
    labels = ids.where(mask == 1, IGNORED)
    count = int((labels != IGNORED).sum())
    expected = _loss(own, ids, labels, mask)
    found = laid_out(input_ids=ids, labels=labels, attention_mask=mask, num_items_in_batch=count)
    if not abs(found.loss - expected) <= TOLERANCE[torch.float32] * abs(expected):
        return False
    expected.backward()
    found.loss.backward()
    limit = TOLERANCE[torch.float32]
    return wrong_gradient(whole_gradients(laid_out), gradients_of(own), limit) is None


def _loss(model: nn.Module, ids: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
