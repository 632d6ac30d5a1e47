"""What a model keeps for its backward, and what that works with, on tensors that have sizes and no
values.
"""

from collections.abc import Callable
from itertools import accumulate, pairwise
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
    works: most of what the backward of each kind of block has beside what is there when it begins,
        and the gradient that it begins with.
    """

    of_block: dict[Kind, int]
    beside: int
    works: dict[Kind, int]


class _Over(Exception):
    """The blocks' forward is."""


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
    marks: list[int] = []  # how many events there were: before all, before each block, after all
    with without_values(model, family, plan, 0, device) as (trainer, _):
        watch = watch_of(trainer)

        def mark(*_: Any) -> None:
            marks.append(len(watch.events))

        mark()
        for block in blocks:
            block.register_forward_pre_hook(
                lambda _, *given: _marked(_entering(*given), mark), with_kwargs=True
            )
        blocks[-1].register_forward_hook(lambda _, __, out: _over(out, mark))
        ids = torch.zeros((batch, seq_len), dtype=torch.long, device=device)
        with watch:
            states = _forward(trainer, ids)
            if plan.activation == "none":  # else hooks are called again in the backward
                torch.autograd.backward(states, torch.empty_like(states))
    before, *forward = marks[: len(blocks) + 2]
    alive = [0, *accumulate(grown for _, grown in watch.events)]
    kept = [alive[end] - alive[begin] for begin, end in pairwise(forward)]
    # Later ones of a kind stand for it, for the first block makes what all of them share; the last
    # one only where it is alone, for what it keeps is known when another begins and its input is
    # gone.
    of_block = {kinds[-1]: kept[-1]} | dict(zip(kinds[:-1], kept))
    beside = alive[forward[-2]] - alive[before] - sum(of_block[kind] for kind in kinds[:-1])
    spans = pairwise(marks[len(blocks) + 2 :])
    works = [max(alive[begin : end + 1]) - alive[begin] for begin, end in spans]
    of_kind = {
        kind: states.nbytes + max(work for work, of in zip(works, kinds[::-1]) if of == kind)
        for kind in {*kinds[: len(kinds) if works else 0]}
    }
    return Kept(of_block, beside - states.nbytes, of_kind)


def _entering(args: tuple, named: dict[str, Any]) -> Tensor:
    """The hidden states that a block is called with."""
    return args[0] if args else named["hidden_states"]


def _marked(states: Tensor, mark: Callable) -> None:
    """Mark that they are there, and that their gradient is."""
    mark()
    states.register_hook(mark)


def _over(out: Any, mark: Callable) -> None:
    states = out if isinstance(out, Tensor) else out[0]
    _marked(states, mark)
    raise _Over(states)


def _forward(trainer: Trainer, ids: Tensor) -> Tensor:
    """The hidden states that leave the last block."""
    trainer.model.train()
    trainer.data.begin(last=True, complete=True)
    try:
        trainer.model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel())
    except _Over as over:
        return over.args[0]
