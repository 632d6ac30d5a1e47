"""What a model keeps for its backward, on tensors that have sizes and no values."""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.engine.models.architecture import text_config
from helpers.engine.models.families import Family
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from helpers.planner.dry_run.dry_run import first_way, watch_of, without_values


class Kind(NamedTuple):
    """Of a block: its number of parameters, and what its configuration calls it, if anything."""

    elements: int
    layer_type: str


class Kept(NamedTuple):
    """Bytes that a forward leaves on the first rank.

    of_block: of each kind.
    beside: what all blocks share, and what the model's beginning keeps.
    """

    of_block: dict[Kind, int]
    beside: int


def kinds_of(config: Any, sizes: list[int]) -> list[Kind]:
    """Of each block.

    Args:
        sizes: their numbers of parameters.
    """
    types = getattr(text_config(config), "layer_types", None) or ()
    return [
        Kind(size, types[place] if len(types) == len(sizes) else "")
        for place, size in enumerate(sizes)
    ]


def kept_by_blocks(config: Any, plan: ParallelPlan, batch: int, seq_len: int, device: str) -> Kept:
    """What blocks of each kind keep, and what a model keeps beside them.

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
) -> Kept:
    blocks = list(model.get_submodule(family.blocks))
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in blocks]
    kinds = kinds_of(model.config, sizes)
    alive: list[int] = []
    entered: list[int] = []
    with without_values(model, family, plan, 0, device) as (trainer, _):
        watch = watch_of(trainer)
        before = watch.alive_bytes
        for block in blocks:
            block.register_forward_pre_hook(lambda *_: alive.append(watch.alive_bytes))
        blocks[0].register_forward_pre_hook(
            lambda _, *given: entered.append(_entering(*given).nbytes), with_kwargs=True
        )
        blocks[-1].register_forward_hook(lambda *_: alive.append(watch.alive_bytes))
        with watch:
            _forward(trainer, torch.zeros((batch, seq_len), dtype=torch.long, device=device))
    kept = [after - before for before, after in pairwise(alive[: len(blocks) + 1])]
    # Later ones of a kind stand for it, for the first block makes what all of them share; the last
    # one only where it is alone, for what it keeps is known when another begins and its input is
    # gone.
    of_block = {kinds[-1]: kept[-1]} | dict(zip(kinds[:-1], kept))
    beside = alive[len(blocks) - 1] - before - sum(of_block[kind] for kind in kinds[:-1])
    return Kept(of_block, beside - entered[0])


def _entering(args: tuple, named: dict[str, Any]) -> Tensor:
    """The hidden states that a block is called with."""
    return args[0] if args else named["hidden_states"]


def _forward(trainer: Trainer, ids: Tensor) -> None:
    trainer.model.train()
    trainer.data.begin(last=True, complete=True)
    trainer.model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel())
