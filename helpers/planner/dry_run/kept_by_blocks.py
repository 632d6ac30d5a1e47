"""What blocks of a model keep for their backward, on tensors that have sizes and no values."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from helpers.engine.models.families import Family
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.dry_run import first_way, watch_of, without_values
from helpers.planner.dry_run.tensor_watch import Watch


def kept_by_blocks(
    config: Any, plan: ParallelPlan, batch: int, seq_len: int, device: str
) -> dict[int, int]:
    """Bytes that a block's forward leaves on the first rank, of each size of block: by its number
    of parameters.

    Args:
        plan: of one stage and one micro-batch.
        device: as of `dry_run`.

    Raises:
        UserError: as `dry_run`.
    """
    plan.validate(config)
    return first_way(
        config, plan, lambda model, family: _kept(model, family, plan, batch, seq_len, device)
    )


def _kept(
    model: nn.Module, family: Family, plan: ParallelPlan, batch: int, seq_len: int, device: str
) -> dict[int, int]:
    blocks = list(model.get_submodule(family.blocks))
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    alive: list[int] = []
    with without_values(model, family, plan, 0, device) as (trainer, _):
        watch = watch_of(trainer)
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: alive.append(watch.alive_bytes))
        blocks[-1].register_forward_hook(lambda *_: alive.append(watch.alive_bytes))
        _forward(trainer, watch, torch.zeros((batch, seq_len), dtype=torch.long, device=device))
    kept = [after - before for before, after in pairwise(alive[: len(blocks) + 1])]
    # Later ones of a size stand for it, for the first block makes what all of them share; the last
    # one only where it is alone, for what it keeps is known when another begins and its input is
    # gone.
    return {sizes[-1]: kept[-1]} | dict(zip(sizes[:-1], kept))


def _forward(trainer: Trainer, watch: Watch, ids: torch.Tensor) -> None:
    trainer.model.train()
    trainer.data.begin(last=True, complete=True)
    with watch:
        trainer.model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel())
