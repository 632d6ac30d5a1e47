"""What a block of a model keeps for its backward, on tensors that have sizes and no values."""

import copy
from typing import Any

import torch
from torch import nn

from helpers.engine.models.architecture import text_config
from helpers.engine.models.families import Family
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.dry_run import first_way, watch_of, without_values
from helpers.planner.dry_run.tensor_watch import Watch


def kept_by_block(config: Any, plan: ParallelPlan, batch: int, seq_len: int, device: str) -> int:
    """Bytes that a block's forward leaves on the first rank: of the largest kind of block, in a
    model with two layers of every kind.

    Args:
        plan: of one stage and one micro-batch.
        device: as of `dry_run`.

    Raises:
        UserError: as `dry_run`.
    """
    plan.validate(config)
    small = copy.deepcopy(config)
    fewer_layers(text_config(small), 2)
    return first_way(
        small, plan, lambda model, family: _kept(model, family, plan, batch, seq_len, device)
    )


def _kept(
    model: nn.Module, family: Family, plan: ParallelPlan, batch: int, seq_len: int, device: str
) -> int:
    blocks = list(model.get_submodule(family.blocks))
    # but the last: what a block keeps is known when the next begins and its own input is gone
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks[:-1]]
    largest = [place for place, size in enumerate(sizes) if size == max(sizes)]
    place = largest[-1]  # and not the first if there are others, which makes what all share
    alive: list[int] = []
    with without_values(model, family, plan, 0, device) as (trainer, _):
        watch = watch_of(trainer)
        for block in blocks[place : place + 2]:
            block.register_forward_pre_hook(lambda *_: alive.append(watch.alive_bytes))
        _forward(trainer, watch, torch.zeros((batch, seq_len), dtype=torch.long))
    before, after = alive[:2]
    return after - before


def _forward(trainer: Any, watch: Watch, ids: torch.Tensor) -> None:
    trainer.model.train()
    trainer.data.begin(last=True, complete=True)
    with watch:
        trainer.model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel())
