"""Cut a model into the stages of a pipeline.

    rank 0   [embedding  block 0  block 1]    hidden states [batch, seq, hidden]
    rank 1                                 -> [block 2  block 3  norm  head] -> loss

A rank's model is the same transformers model without the modules that other ranks own, names kept.
A stage is a stretch of it; with virtual stages a rank has several. A stage runs through the base
model's own forward, which makes positions and masks, and of which the other modules are taken out
for so long: what the stage before sent goes in before its first block, and what it hands on is
taken out after its last.

A head that is tied to the embedding needs the same matrix at both ends: the last rank then keeps
the embedding too, and the two sum its gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from helpers.engine.families import Family
from helpers.engine.partition import balance, layer_ranges, model_costs
from helpers.engine.plan import ParallelPlan
from helpers.engine.region import on_input
from helpers.engine.schedules import Schedule

SEQ_LEN = 1024  # at which attention is counted where layers are balanced over stages


class Elsewhere(nn.Module):
    """In the place of a module that another rank has. What it gives adds nothing."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(())


class Keep(nn.Module):
    """In the place of the last norm: keeps what the stage hands on, and goes on with a tensor of
    the shape that the base model expects."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None
        self.shape: tuple[int, ...] = ()

    def forward(self, hidden: Tensor) -> Tensor:
        self.kept = hidden
        return hidden.new_zeros(()).expand(self.shape)

    def take(self) -> Tensor:
        kept, self.kept = self.kept, None
        return kept


@dataclass(eq=False)
class Stage:
    """A stretch of the model.

    index: over all ranks, in the model's order.
    blocks: by their names in the model's list of blocks.
    first, last: does it begin with the embedding, does it end with the loss?
    entry: its first module after the embedding.
    """

    index: int
    blocks: dict[str, nn.Module]
    first: bool
    last: bool
    keep: Keep = field(default_factory=Keep)
    entry: nn.Module | None = None
    received: Tensor | None = None

    def listen(self) -> None:
        """Let what was received take the place of what the base model hands to the entry."""
        if self.first:
            return
        self.entry.register_forward_pre_hook(
            on_input(lambda placeholder: self.received), prepend=True, with_kwargs=True
        )


def cut(model: nn.Module, family: Family, plan: ParallelPlan, rank: int) -> None:
    """Take out what pipeline rank `rank` does not own.

    Sets on the model:
        stages: of this rank.
        tied_over_ranks: the parameter that the first and the last stage's rank both hold, or None.
        parameter_count: of the whole model.
    """
    schedule = plan.schedule_of(1)
    counts = plan.stage_layers or auto_partition(model, schedule.stages)
    embedding, head = model.get_submodule(family.embedding), model.get_submodule(family.head)
    tied = embedding.weight is head.weight
    names = {id(p): name for name, p in model.named_parameters()}
    model.parameter_count = sum(p.numel() for p in model.parameters())
    both = tied and schedule.rank_of[0] != schedule.rank_of[-1]
    model.tied_over_ranks = names[id(embedding.weight)] if both else None
    model.stages = _stages(model, family, schedule, counts, rank)
    _remove_blocks(model.get_submodule(family.blocks), model.stages)
    if not any(stage.last for stage in model.stages):
        for path in (family.norm, family.head):
            _replace(model, path)
    if not any(stage.first for stage in model.stages):
        kept = (family.blocks, family.norm)
        needed = tied and any(stage.last for stage in model.stages)
        for path in _front(model, family):
            if path not in kept and not (needed and path == family.embedding):
                _replace(model, path)


def auto_partition(model: nn.Module, stages: int) -> tuple[int, ...]:
    """Layers of each stage by the modelled cost of the model's parts."""
    if stages == 1:
        return (model.config.num_hidden_layers,)
    longest = getattr(model.config, "max_position_embeddings", None) or SEQ_LEN
    return balance(model_costs(model, min(SEQ_LEN, longest)), stages)


def _stages(
    model: nn.Module, family: Family, schedule: Schedule, counts: Sequence[int], rank: int
) -> list[Stage]:
    stack, ranges = model.get_submodule(family.blocks), layer_ranges(counts)
    stages = []
    for index in schedule.stages_of(rank):
        blocks = {str(layer): stack[layer] for layer in ranges[index]}
        stage = Stage(index, blocks, index == 0, index == schedule.stages - 1)
        end = model.get_submodule(family.norm) if stage.last else stage.keep
        stage.entry = next(iter(blocks.values()), end)
        stages.append(stage)
    return stages


def _remove_blocks(stack: nn.ModuleList, stages: Sequence[Stage]) -> None:
    """Delete entries of the list under their names; ModuleList itself would number anew."""
    mine = {name for stage in stages for name in stage.blocks}
    for name in [name for name, _ in stack.named_children() if name not in mine]:
        del stack._modules[name]


def _front(model: nn.Module, family: Family) -> list[str]:
    """Paths of the base model's children that have parameters."""
    prefix = family.blocks.rpartition(".")[0]
    children = model.get_submodule(prefix).named_children()
    return [f"{prefix}.{name}" for name, child in children if any(True for _ in child.parameters())]


def _replace(model: nn.Module, path: str, module: nn.Module | None = None) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module or Elsewhere())


def run_stage(
    model: nn.Module,
    family: Family,
    stage: Stage,
    input_ids: Tensor,
    received: Tensor | None,
    **options: Tensor,
) -> Tensor:
    """The stage's hidden states: after the last norm from the last stage, else what goes to the
    next one.

    Args:
        input_ids: [batch, seq], of which stages after the first use the shape.
        received: what the stage before handed on, [batch, seq, hidden], under sequence parallelism
            this rank's part of the sequence; None for the first stage.
        options: for the base model, as positions and mask of packed rows.
    """
    shape = (*input_ids.shape, model.config.hidden_size)
    inputs = {"input_ids": input_ids}
    if not stage.first:
        inputs = {"inputs_embeds": received.new_zeros(()).expand(shape)}
    stage.received, stage.keep.shape = received, shape
    with _alone(model, family, stage):
        hidden = model.base_model(**inputs, use_cache=False, **options)[0]
    stage.received = None
    return hidden if stage.last else stage.keep.take()


@contextmanager
def _alone(model: nn.Module, family: Family, stage: Stage) -> Iterator[None]:
    """For so long, the base model has this stage's modules and no others."""
    stack, norm = model.get_submodule(family.blocks), model.get_submodule(family.norm)
    everything = stack._modules
    stack._modules = stage.blocks
    if not stage.last:
        _replace(model, family.norm, stage.keep)
    try:
        yield
    finally:
        stack._modules = everything
        if not stage.last:
            _replace(model, family.norm, norm)
