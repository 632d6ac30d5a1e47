"""Cut a model into the stages of a pipeline.

    rank 0   [embedding  block 0  block 1]    hidden states [batch, seq, hidden]
    rank 1                                 -> [block 2  block 3  norm  head] -> loss

A rank's model is the same transformers model without the modules that other ranks own, names kept.
A stage is a stretch of it; with virtual stages a rank has several. A stage runs through the base
model's own forward, which makes positions and masks and goes through the list of blocks: what is
not the stage's is passed over, what the stage before sent goes in before its first block, and what
it hands on is taken out after its last.

What stands before the blocks belongs to the first stage, what stands after them (last norm, pooler,
head) to the last. A head that is tied to the embedding needs the same matrix at both ends: the last
rank then keeps the embedding too, and the two sum its gradients.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import UserError
from ..models.architecture import family_of, inside, text_config
from ..models.blocks import on_input
from ..models.families import Family
from .elsewhere import Elsewhere, Exit
from .partition import Costs, balance, check_cut, layer_ranges, model_costs
from .schedules import Schedule

SEQ_LEN = 1024  # at which attention is counted where layers are balanced over stages


@dataclass(eq=False)
class Stage:
    """A stretch of the model.

    index: over all ranks, in the model's order.
    blocks: by their names in the model's list of blocks.
    modules: that list with something in the place of all other blocks, so that the model's loop
        counts as it always does.
    first, last: does it begin with the embedding, does it end with the loss?
    entry: its first module after the embedding.
    exit: what follows its last module; of the last stage nothing does.
    norm: in the place of the model's last norm, where the stage does not end with it.
    """

    index: int
    blocks: dict[str, nn.Module]
    modules: dict[str, nn.Module]
    first: bool
    last: bool
    entry: nn.Module
    exit: Exit | None = None
    norm: Elsewhere | None = None
    received: Tensor | None = None

    @property
    def whole(self) -> bool:
        """Is it all of the model?"""
        return self.first and self.last

    def listen(self) -> None:
        """Let what was received take the place of what the base model hands to the entry."""
        if self.first:
            return
        self.entry.register_forward_pre_hook(
            on_input(lambda placeholder: self.received), prepend=True, with_kwargs=True
        )

    def run(
        self,
        model: nn.Module,
        family: Family,
        forward: Callable[..., Any],
        input_ids: Tensor,
        received: Tensor | None,
        **options: Tensor,
    ) -> Any:
        """What `forward` gives from the last stage, else the hidden states for the next one.

        Args:
            forward: the model's or the base model's own.
            input_ids: [batch, seq], of which stages after the first use the shape.
            received: what the stage before handed on, [batch, seq, hidden], under sequence
                parallelism this rank's part of the sequence; None for the first stage.
            options: for `forward`, as positions and mask of packed rows.
        """
        shape = (*input_ids.shape, text_config(model.config).hidden_size)
        inputs = {"input_ids": input_ids}
        embeds = None if self.first else received.new_zeros(()).expand(shape)
        beyond = self.last and family.whole_logits  # what is beyond the base model may want the ids
        if not self.first and not beyond:
            inputs = {"inputs_embeds": embeds}
        after = self.norm or list(self.modules.values())[-1]
        if isinstance(after, Elsewhere):  # what the model takes for the blocks' result
            after.shape = shape
        self.received = received
        with self._alone(model, family), _embedded(model, embeds if beyond else None):
            outputs = forward(**inputs, **options)
        self.received = None
        return outputs if self.last else self.exit.take()

    @contextmanager
    def _alone(self, model: nn.Module, family: Family) -> Iterator[None]:
        """For so long, the base model has this stage's modules and no others."""
        stack = model.get_submodule(family.blocks)
        of_rank, stack._modules = stack._modules, self.modules
        norm = None if self.norm is None else model.get_submodule(family.norm)
        if norm is not None:
            _replace(model, family.norm, self.norm)
        try:
            yield
        finally:
            stack._modules = of_rank
            if norm is not None:
                _replace(model, family.norm, norm)


@contextmanager
def _embedded(model: nn.Module, embeds: Tensor | None) -> Iterator[None]:
    """For so long, the base model is called with these, if any, and not with the ids."""
    if embeds is None:
        yield
        return

    def replaced(base: nn.Module, args: tuple, named: dict[str, Any]) -> tuple[tuple, dict]:
        names = inspect.signature(base.forward).parameters
        named |= dict(zip(names, args))
        return (), named | {"input_ids": None, "inputs_embeds": embeds}

    hook = model.base_model.register_forward_pre_hook(replaced, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


def cut(
    model: nn.Module,
    family: Family,
    schedule: Schedule,
    stage_layers: Sequence[int] | None,
    rank: int,
) -> None:
    """Take out what pipeline rank `rank` does not own.

    Args:
        schedule: of any number of micro-batches; says which stages a rank has.
        stage_layers: how many layers each stage has, None to balance them.

    Sets on the model:
        stages: of this rank.
        tied_over_ranks: the parameter that the first and the last stage's rank both hold, or None.
        after_blocks: where there are several stages, paths of what the last one has beyond its
            blocks.
        parameter_count, vocabulary: of the whole model.
        many_losses: does the last stage begin several micro-batches before it ends the first?
    """
    model.parameter_count = sum(p.numel() for p in model.parameters())
    model.vocabulary = model.get_input_embeddings().weight.shape[0]
    model.many_losses = schedule.name == "gpipe"
    if schedule.stages == 1:
        model.tied_over_ranks, model.stages = None, [_whole_model(model, family)]
        return
    check_cut(family)
    counts = stage_layers or auto_partition(model, schedule.stages, family)
    if family.norm is None and counts[-1] == 0:
        raise UserError(
            f"{family.name} has no norm after its last block, so its last stage needs a block: "
            f"the partition {','.join(map(str, counts))} leaves it none"
        )
    embedding = model.get_submodule(family.embedding)
    names = {id(p): name for name, p in model.named_parameters()}
    before, after = ends_of(model, family)
    model.after_blocks = sorted(after)
    at_end = {id(p) for path in after for p in model.get_submodule(path).parameters()}
    tied = id(embedding.weight) in at_end
    both = tied and schedule.rank_of[0] != schedule.rank_of[-1]
    model.tied_over_ranks = names[id(embedding.weight)] if both else None
    model.stages = _stages(model, family, schedule, counts, rank)
    _remove_blocks(model.get_submodule(family.blocks), model.stages)
    begins, ends = (any(getattr(stage, end) for stage in model.stages) for end in ("first", "last"))
    kept = {family.embedding} if tied and ends else set()
    for path in [*(() if begins else before - kept), *(() if ends else after)]:
        _replace(model, path)


def _whole_model(model: nn.Module, family: Family) -> "Stage":
    blocks = dict(model.get_submodule(family.blocks).named_children()) if family.blocks else {}
    entry = next(iter(blocks.values()), model)
    return Stage(0, blocks, blocks, True, True, entry)


def auto_partition(model: nn.Module, stages: int, family: Family | None = None) -> tuple[int, ...]:
    """Layers of each stage by the modelled cost of the model's parts."""
    if stages == 1:
        return (text_config(model.config).num_hidden_layers,)
    return balance(costs_of_parts(model, family or family_of(model)), stages)


def costs_of_parts(model: nn.Module, family: Family) -> Costs:
    """What a model's parts cost that are dealt out to stages."""
    longest = getattr(text_config(model.config), "max_position_embeddings", None) or SEQ_LEN
    costs = model_costs(model, min(SEQ_LEN, longest), family)
    return costs if family.norm else costs.head_with_last_layer


def _stages(
    model: nn.Module, family: Family, schedule: Schedule, counts: Sequence[int], rank: int
) -> list[Stage]:
    ranges = layer_ranges(counts)
    return [
        _stage(model, family, index, ranges[index], last=index == schedule.stages - 1)
        for index in schedule.stages_of(rank)
    ]


def _stage(model: nn.Module, family: Family, index: int, layers: range, last: bool) -> Stage:
    stack = model.get_submodule(family.blocks)
    blocks = {str(layer): stack[layer] for layer in layers}
    modules = {name: Elsewhere((1, 1, 1)).named_as(block) for name, block in stack.named_children()}
    modules |= blocks
    entry = next(iter(blocks.values()), None)
    if last:
        entry = entry or model.get_submodule(family.norm)
        return Stage(index, blocks, modules, index == 0, last, entry)
    exit, after_loop = Exit((1, 1, 1)), Elsewhere() if family.norm else None
    if layers.stop < len(stack):
        modules[str(layers.stop)] = exit.named_as(stack[layers.stop])
    else:
        after_loop = exit
    return Stage(index, blocks, modules, index == 0, last, entry or exit, exit, after_loop)


def _remove_blocks(stack: nn.ModuleList, stages: Sequence[Stage]) -> None:
    """Delete entries of the list under their names; ModuleList itself would number anew."""
    kept = {name for stage in stages for name in stage.blocks}
    for name in [name for name, _ in stack.named_children() if name not in kept]:
        del stack._modules[name]


def ends_of(model: nn.Module, family: Family) -> tuple[set[str], set[str]]:
    """Paths of what has parameters before the blocks, in the smallest modules, and after them.

    Beside the list of blocks all comes before them but the norm. Beside what the list is in the
    order decides in which the class makes its modules; beside the base model all comes after it.

    Raises:
        UserError: a module that the blocks are in has parameters beside its modules.
    """
    before, after = {family.embedding}, {family.norm, family.top or family.head} - {None}
    stack = family.blocks.split(".")
    for path, module in model.named_modules():
        own = any(True for _ in module.parameters(recurse=False))
        if not own or any(inside(path, known) for known in (family.blocks, *before, *after)):
            continue
        if not path or f"{family.blocks}.".startswith(f"{path}."):
            raise UserError(
                f"{family.name} cannot be cut into stages: {path} has parameters itself"
            )
        steps = path.split(".")
        depth = next(i for i, (one, other) in enumerate(zip(steps, stack)) if one != other)
        order = list(model.get_submodule(".".join(stack[:depth]))._modules)
        beside = depth == len(stack) - 1
        if beside or (depth and order.index(steps[depth]) < order.index(stack[depth])):
            before.add(path)
        else:
            after.add(".".join(steps[: depth + 1]))
    return before, after


def _replace(model: nn.Module, path: str, module: nn.Module | None = None) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module or _elsewhere(model.get_submodule(path)))


def _elsewhere(module: nn.Module) -> Elsewhere:
    lacks = {name: parameter.shape for name, parameter in module.named_parameters()}
    return Elsewhere(looks_up=isinstance(module, nn.Embedding), lacks=lacks)
