"""torch's own loop over what trains of a model with adapters, and the same of a trainer."""

import torch
from torch import nn

from helpers.engine.trainer import Trainer
from tests.support import tiny

# Where B is still near zero, A's gradients are too, and Adam would turn their rounding into steps
STEPS, LR, EPS, CLIP = 4, 1e-2, 1e-4, 0.5
OPTIONS = {"lr": LR, "eps": EPS, "clip": CLIP, "weight_decay": tiny.DECAY}  # of a trainer


def plain_loop(model: nn.Module, family: str = "llama") -> tuple[list[float], list[float]]:
    """Losses and norms of one process: the model's own forward and torch's optimizer.

    Args:
        family: whose batches are taken; those of decoders are alike.
    """
    parameters = [p for p in model.train().parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": tiny.DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=EPS)
    losses, norms = [], []
    for step in range(STEPS):
        ids, labels, inputs = tiny.masked_batch(family, step)
        loss = tiny.plain_loss(model, ids, labels, **inputs)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(parameters, CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


def trained_losses(trainer: Trainer, family: str = "llama") -> list[float]:
    """The losses of as many steps on the same batches."""
    batches = (tiny.masked_batch(family, step) for step in range(STEPS))
    return [trainer.step(ids, labels, **inputs).loss for ids, labels, inputs in batches]
