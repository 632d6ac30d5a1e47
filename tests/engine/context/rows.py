"""Batches of several kinds, and what one process running transformers' own class makes of them."""

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.engine.models.documents import PADDING
from helpers.engine.plan import ParallelPlan
from helpers.engine.precision.optimizer import gradient_norm
from helpers.engine.trainer import Trainer
from tests.support import parity, tiny

IGNORED = -100
# lengths of the documents of each row; what is left of its tokens is padding
DOCUMENTS = ((5, 11, 4), (1, 2, 3, 9), (20,), (19, 1), (7, 7, 2), (3,), (10, 9), (6, 6, 6, 2))
LENGTHS = {"plain": 16, "uneven": 13, "short": 2, "packed": 20}  # short: most ranks have padding
KINDS = (*LENGTHS, "classification")
ANSWERS = [3, 7]


def batch(kind: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Ids, labels and documents of 8 rows."""
    length = LENGTHS.get(kind, 9)
    ids, labels = tiny.batch(len(kind), rows=8, length=length)
    if kind == "classification":  # the answer is the last token that is no padding
        ends = torch.arange(8) % 5 + 4
        answers = torch.tensor(ANSWERS)[torch.arange(8) % 2]
        ids = ids.scatter(1, ends[:, None], answers[:, None])
        labels = torch.full_like(ids, IGNORED).scatter(1, ends[:, None], answers[:, None])
        return ids, labels, None
    if kind == "short":
        labels = ids.clone()
    if kind != "packed":
        return ids, labels, None
    documents = torch.full_like(ids, PADDING)
    labels = ids.clone()
    for row, lengths in enumerate(DOCUMENTS):
        at = 0
        for number, size in enumerate(lengths):
            documents[row, at : at + size] = number
            labels[row, at] = IGNORED  # the first of a document is predicted by none
            at += size
        labels[row, at:] = IGNORED
    return ids, labels, documents


def token_losses(model: nn.Module, kind: str) -> tuple[Tensor, Tensor]:
    """The summed loss, and the logits at labelled places, document by document."""
    ids, labels, documents = batch(kind)
    losses, at_labels = [], []
    for row in range(len(ids)):
        sizes = [ids.shape[1]] if documents is None else DOCUMENTS[row]
        at = 0
        for size in sizes:
            own, targets = ids[row : row + 1, at : at + size], labels[row, at + 1 : at + size]
            logits = model(input_ids=own, use_cache=False).logits[0, :-1][targets != IGNORED]
            losses.append(F.cross_entropy(logits, targets[targets != IGNORED], reduction="sum"))
            at_labels.append(logits.detach())
            at += size
    return torch.stack(losses).sum(), torch.cat(at_labels)


@cache
def truth(family: str, kind: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """The mean loss, all gradients, their norm, and the accuracy among ANSWERS."""
    model = tiny.reference(family, dtype)
    total, at_labels = token_losses(model, kind)
    _, labels, _ = batch(kind)
    targets = labels[:, 1:][labels[:, 1:] != IGNORED]
    loss = total / len(targets)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))
    chosen = torch.tensor(ANSWERS)[at_labels[:, ANSWERS].argmax(1)]
    right = (chosen == targets).double().mean().item()
    return {"loss": loss.item(), "gradients": gradients, "norm": norm, "accuracy": right}


def trainer_of(family: str, plan: ParallelPlan, dtype: torch.dtype = torch.float64) -> Trainer:
    return parity.trainer_of(family, plan, dtype, check=False, clip=None)


def check(family: str, plan: ParallelPlan, kind: str, dtype: torch.dtype = torch.float64) -> None:
    """Loss, every gradient and the norm in training, loss and accuracy in evaluation."""
    expected, limit = truth(family, kind, dtype), parity.TOLERANCE[dtype]
    trainer, (ids, labels, documents) = trainer_of(family, plan, dtype), batch(kind)
    scores = trainer.evaluate([(ids, labels, documents)], ANSWERS)
    parity.close("held-out loss", scores["loss"], expected["loss"], limit)
    parity.close("accuracy", scores["accuracy"], expected["accuracy"], 1e-12)
    assert scores["tokens"] == (labels[:, 1:] != IGNORED).sum()
    loss = trainer.backward(ids, labels, documents)
    parity.close("loss", loss, expected["loss"], limit)
    gradients = trainer.gradients()
    parity.compare(trainer, "gradient", gradients, expected["gradients"], limit)
    norm = gradient_norm(trainer.parts, gradients, trainer.device).item()
    parity.close("norm", norm, expected["norm"], limit)
