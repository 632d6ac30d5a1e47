"""The shape of a model of a family with no formula: the class itself, on the meta device, counted.

    shape = counted_shape(load_config("qwen3-8b"))     # parameters exact, time by its products

What the engine's record or transformers' tensor plan says decides what tp splits. Blocks that
differ, as where the first few have no experts, are of several kinds. Nothing is said of a model
whose step has other products than attention, an MLP and a head: the class's own forward, on tensors
without values, tells.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from helpers.engine.admission.admitted import check_alone
from helpers.engine.errors import UserError, need
from helpers.engine.models.architecture import Same, candidates, common_parent, has, text_config
from helpers.engine.models.block_rules import Cut, expert_cuts
from helpers.engine.models.configurations import longest_row
from helpers.engine.models.families import Family, kv_heads
from helpers.engine.models.objectives import check_known
from helpers.engine.parallelize import lay_out
from helpers.engine.pipeline.stages import costs_of_parts
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.layers import CONV1D, LINEAR
from helpers.engine.tensor.partial_gradients import inside, split_widths, splits_norm
from helpers.engine.tensor.split import has_split
from helpers.planner.dry_run.forward_products import forward_products
from helpers.planner.dry_run.kept_by_blocks import kinds_of
from helpers.planner.shape.kinds import BlockKind, mean_block, mix_of
from helpers.planner.shape.parameters import EXPERTS, INNER, KV, OUTSIDE, Held
from helpers.planner.shape.products import idle, products
from helpers.planner.shape.shape import Shape, token_flops

MEASURED = "dry_run(config, plan) measures the memory, FLOPs and messages of a step"
PRODUCTS_APART = 0.1  # of a forward's FLOPs, that the formulas may be off by
WINDOWS = ("sliding_window", "attention_chunk_size", "window_size")  # fields of configurations
RECURRENT = "linear_attention"  # as configurations call layers of state spaces, too
SHORT = 32  # tokens of that forward, in which scores of attention are few


def counted_shape(config: Any) -> Shape:
    """The shape of a causal language model, from its class.

    Raises:
        UserError: transformers has no such class for it, the engine would refuse it, it has no list
            of blocks, or parameters or products elsewhere than in a language model.
    """
    return _counted(Same.of(config))


@lru_cache(maxsize=64)  # its class's forward takes seconds
def _counted(same: Same) -> Shape:
    transformers, config = need("transformers", "hf"), same.config
    try:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(
                copy.deepcopy(config), trust_remote_code=False
            )
    except Exception as error:  # whatever a class says of a configuration
        check_known(config)
        line = str(error).strip().splitlines()
        raise UserError(
            f"{config.model_type} is no causal language model that transformers can make: "
            f"{line[0] if line else type(error).__name__}"
        ) from None
    shape = shape_of(model)
    check_alone(model, ParallelPlan(), lay_out)
    _check_products(model, shape)
    return replace(shape, source=same)


def _window(config: Any) -> int:
    """Tokens that the narrowest of its layers sees at most, or 0."""
    widths = [getattr(config, name, None) for name in WINDOWS]
    return min((width for width in widths if type(width) is int and width > 0), default=0)


def _check_products(model: nn.Module, shape: Shape) -> None:
    """Raise a UserError if the class's own forward has other FLOPs than the formula says."""
    length = min(SHORT, shape.longest or SHORT)
    own, formula = forward_products(model, 1, length), length * token_flops(shape, length)
    if abs(formula / own - 1) > PRODUCTS_APART:
        raise UserError(
            f"a step of {model.config.model_type} has {own / formula:.3g} times the FLOPs of "
            f"attention, an MLP and a head of its sizes, which alone are priced: {MEASURED}"
        )


def shape_of(model: nn.Module) -> Shape:
    """The same of a model that is there."""
    family, config = candidates(model, tp=2)[0], text_config(model.config)
    if family.blocks is None or family.embedding is None:
        raise UserError(f"{model.config.model_type} has no embedding and list of blocks to count")
    blocks = list(model.get_submodule(family.blocks))
    if not getattr(config, "num_attention_heads", None):
        raise UserError(f"{model.config.model_type} has no attention heads: {MEASURED}")
    hidden, heads, groups = config.hidden_size, config.num_attention_heads, kv_heads(config)
    head_dim = _key_width(config)
    held = [tuple(_held(one, family, model.config)) for one in blocks]
    sizes = [sum(one.elements for one in some) for some in held]
    largest = sizes.index(max(sizes))
    found = [products(one, config, heads, groups, head_dim) for one in blocks]
    named = kinds_of(model.config, sizes)
    of_layers = [BlockKind(*kind) for kind in zip(held, found, (one.layer_type for one in named))]
    kinds = tuple(dict.fromkeys(of_layers))
    kind_of = tuple(map(kinds.index, of_layers))
    norms = [m for m in blocks[largest].children() if _is_norm(m)]
    last = model.get_submodule(family.norm) if family.norm else nn.Identity()
    begin, end, tied = _ends(model, family)
    shape = Shape(
        family=config.model_type,
        layers=len(blocks),
        hidden=hidden,
        heads=heads,
        kv_heads=groups,
        head_dim=head_dim,
        vocab=begin[0].sizes[0],
        positions=0,
        block=found[largest],
        block_norm=len(norms) * hidden,
        final_norm=sum(parameter.numel() for parameter in last.parameters()),
        reductions=_regions(blocks[largest], family, model.config),
        tied=tied,
        longest=longest_row(config),
        window=_window(config),
        recurrent=any(one.layer_type == RECURRENT for one in named),
        capped=getattr(config, "final_logit_softcapping", None) is not None,
        idle=sum(idle(one, config) for one in blocks),
        held=held[largest],
        costs=costs_of_parts(model, family),
        begin=begin,
        end=end,
    )
    if len(kinds) == 1:
        return shape
    shape = replace(shape, kinds=kinds, kind_of=kind_of)
    mix = mix_of(shape, range(shape.layers))
    return replace(shape, block=mean_block(kinds, mix), mix=mix)


def _regions(block: nn.Module, family: Family, config: Any) -> int:
    """How often work goes into what tp splits of a block, and out of it again: of a class that tp
    splits in part as often as of one that it splits."""
    if family.parallel_residual(config):
        return 1
    here = [sublayer for sublayer in family.sublayers if has_split(block, family, sublayer)]
    return max(2, len(here) + sum(has(block, path) for path in family.experts))


def _key_width(config: Any) -> int:
    """Of a head's query and key; of low ranks, `head_dim` may say what of it is turned."""
    turned, rest = (getattr(config, f"qk_{part}_head_dim", None) or 0 for part in ("rope", "nope"))
    given = turned + rest or getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def _held(block: nn.Module, family: Family, config: Any) -> Iterator[Held]:
    """A block's parameters, as tensor/split.py of the engine cuts them."""
    here = [sublayer for sublayer in family.sublayers if has_split(block, family, sublayer)]
    widths_of = {sublayer: split_widths(config, family, block, sublayer) for sublayer in here}
    for path, parameter in block.named_parameters():
        owner, _, name = path.rpartition(".")
        sizes = tuple(parameter.shape)
        around = next((one for one in here if inside(owner, one)), None)
        if owner in family.split_layers:
            yield _of_layer(block.get_submodule(owner), owner, name, family)
        elif owner in family.experts:
            yield _of_experts(parameter, expert_cuts(block.get_submodule(owner))[name])
        elif around is None:
            yield Held(sizes, None, OUTSIDE)
        elif path in family.per_head:
            yield Held(sizes, 0)
        elif splits_norm(block.get_submodule(owner), widths := widths_of[around]):
            yield Held(sizes, 0, KV if widths[sizes[0]] in family.shared_kv else "")
        else:
            yield Held(sizes, None, INNER)


def _of_layer(layer: nn.Module, path: str, name: str, family: Family) -> Held:
    sizes = getattr(layer, name).shape
    if path in family.shared_kv:
        return Held(tuple(sizes), 0, KV)
    if path in family.gathered:
        return Held(tuple(sizes), 0)
    kind = next(kind for kind in LINEAR if path in getattr(family, kind))
    linear = isinstance(layer, nn.Linear)
    if kind == "packed":  # is held with a dimension for its parts
        dim, parts = 0 if linear else -1, family.packed[path]
        sizes = getattr(layer, name).unflatten(dim, (parts, -1)).shape
    cuts = (LINEAR if linear else CONV1D)[kind]
    return Held(tuple(sizes), cuts.get(name))


def _of_experts(parameter: torch.Tensor, cut: Cut) -> Held:
    if cut.parts == 1:
        return Held(tuple(parameter.shape), cut.dim, EXPERTS)
    sizes = parameter.unflatten(cut.dim, (cut.parts, -1)).shape
    return Held(tuple(sizes), cut.dim + 1, EXPERTS)


def _ends(model: nn.Module, family: Family) -> tuple[tuple[Held, ...], tuple[Held, ...], bool]:
    """What is before the blocks, its table first, what is after them, and whether they share it; as
    tensor/ends.py of the engine cuts it."""
    embedding = model.get_submodule(family.embedding).weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    cut = None if family.whole_logits else 0
    of_head = set() if head is None else set(head.parameters())
    begin, end = [Held(tuple(embedding.shape), cut)], []
    after = [path for path in (family.norm, family.top or family.head) if path]
    _check_text_alone(model, family, after)
    for path, parameter in model.named_parameters():
        if path.startswith(f"{family.blocks}.") or parameter is embedding:
            continue
        held = Held(tuple(parameter.shape), cut if parameter in of_head else None)
        (end if any(inside(path, one) for one in after) else begin).append(held)
    if tied:
        end.append(begin[0])
    return tuple(begin), tuple(end), tied


def _check_text_alone(model: nn.Module, family: Family, after: list[str]) -> None:
    """Raise a UserError if there are parameters beside what has the tokens' table and the blocks,
    and what follows it, or a tower for images or sound: which of these get a gradient of a text,
    and which stage has them, is not known."""
    text, config = common_parent(family.embedding, family.blocks), model.config
    others = {type(part) for part in vars(config).values() if hasattr(part, "model_type")}
    others -= {type(text_config(config))}
    towers = [path for path, m in model.named_modules() if type(getattr(m, "config", 0)) in others]
    parts = [text, *after]
    beside = [n for n, _ in model.named_parameters() if not any(inside(n, one) for one in parts)]
    for path in towers + (beside if text else []):
        raise UserError(
            f"{config.model_type} has {path}, which is in no part of a language model that is "
            f"counted here: {MEASURED}"
        )


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()
