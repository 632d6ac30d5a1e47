"""Which linear layers of a block tp splits, and how, by the block's own modules.

    q_proj k_proj v_proj | o_proj        by the names of queries, keys and values
    q_b_proj kv_b_proj   | o_proj        the same out of low ranks, into which layers stay whole
    gate_proj up_proj    | down_proj     by shape: out of the hidden width, and back into it
    experts' gate_up_proj | down_proj    by what transformers' interface of experts says of them

What has none of these (older classes' experts, state spaces) stays whole on each rank. A name can
mislead, so what is found here is not believed but tried: see the room admission.

Source of the low ranks: DeepSeek-AI 2024, DeepSeek-V2, section 2.1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from torch import nn

from .families import kv_heads

SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"))
OUT_OF_LOW_RANK = ("q_b_proj", "kv_b_proj")
LOW_RANK = (OUT_OF_LOW_RANK, ("q_proj", "kv_b_proj"))  # queries may be of full rank
INTO_LOW_RANK = ("q_a_proj", "kv_a_proj_with_mqa")
BY_HEAD = "query_key_value"  # a head's query, key and value after another
FUSED = ((BY_HEAD,), ("qkv_proj",))  # the other: all queries, all keys, all values
SCHEMES = (*SEPARATE, *LOW_RANK, *FUSED)
OUT = ("o_proj", "out_proj", "dense")
ATTENTION = "att"  # in the path of all that belongs to it
PER_HEAD = ("sinks",)  # an attention's own parameters, of which each head has a number


@dataclass(frozen=True)
class BlockRules:
    """The part of a Family that says how a block is split; paths as there."""

    attention: str = ""
    sublayers: tuple[str, ...] = ()
    column: tuple[str, ...] = ()
    packed: dict[str, int] = field(default_factory=dict)
    shared_kv: tuple[str, ...] = ()
    gathered: tuple[str, ...] = ()
    per_head: tuple[str, ...] = ()
    row: tuple[str, ...] = ()
    experts: tuple[str, ...] = ()

    def __or__(self, other: "BlockRules") -> "BlockRules":
        """What either says, in order, each path once."""
        joined = {}
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, tuple):
                joined[one.name] = tuple(dict.fromkeys(mine + theirs))
            else:
                joined[one.name] = mine | theirs if isinstance(mine, dict) else mine or theirs
        return BlockRules(**joined)


def block_rules(blocks: Iterable[nn.Module], config: Any) -> tuple[BlockRules, BlockRules]:
    """What can be split of a model's blocks, which may be of several kinds: of attention, and of
    all else.

    Args:
        config: of the text model.
    """
    attention, rest = BlockRules(), BlockRules()
    for block in blocks:
        linears = {
            path: module
            for path, module in block.named_modules()
            if isinstance(module, nn.Linear) and "experts" not in path.split(".")
        }
        attention |= _attention(block, linears, config)
        others = {path: layer for path, layer in linears.items() if ATTENTION not in path}
        for mlp in _mlps(block, others, config):
            rest |= mlp
        rest |= BlockRules(
            experts=tuple(path for path, m in block.named_modules() if expert_cuts(m))
        )
    return attention, rest


class Cut(NamedTuple):
    """How tp splits one tensor of all experts' weights or biases.

    dim: the width of an expert's middle, by which it is split; None of a bias after the sum.
    parts: of one size that lie one after another along it, 2 of a gate and what it gates.
    """

    dim: int | None
    parts: int = 1


def expert_cuts(module: nn.Module) -> dict[str, Cut]:
    """Of a module that holds all experts' matrices, by name, [experts, out, in] or with in before
    out; of any other module nothing.

    Source: transformers' interface of experts, integrations/moe.py: its names, and what its
    decorator says of a class; of one without it what the shapes say.
    """
    own = dict(module.named_parameters())
    up = "up_proj" if "up_proj" in own else "gate_up_proj"
    if not {up, "down_proj"} <= own.keys() or getattr(module, "has_post_expert_norm", False):
        return {}
    if {own[up].dim(), own["down_proj"].dim()} != {3}:
        return {}
    if any(map(drops_out, module.modules())):  # a rank would draw what others draw for their parts
        return {}
    transposed = getattr(module, "is_transposed", own[up].shape[1] == own["down_proj"].shape[2])
    out, into = (2, 1) if transposed else (1, 2)
    if own[up].shape[out] != own["down_proj"].shape[into] * (1 + (up == "gate_up_proj")):
        return {}
    parts = 2 if up == "gate_up_proj" and getattr(module, "is_concatenated", True) else 1
    cuts = {up: Cut(out, parts), "down_proj": Cut(into)}
    cuts |= {f"{up}_bias": Cut(1, parts), "down_proj_bias": Cut(None)}
    return {name: cuts[name] for name in own} if own.keys() <= cuts.keys() else {}


def drops_out(module: nn.Module) -> bool:
    """Is it dropout, or does it keep a rate for its own forward to take?"""
    rates = [rate for name, rate in vars(module).items() if "drop" in name]
    rates += [module.p] if isinstance(module, nn.Dropout) else []
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _attention(block: nn.Module, linears: dict[str, nn.Linear], config: Any) -> BlockRules:
    """Queries, keys and values that one module makes, and the layer that their heads go to."""
    for parent in dict.fromkeys(path.rpartition(".")[0] for path in linears):
        here = {path for path in linears if path.rpartition(".")[0] == parent}
        named = [tuple(f"{parent}.{name}" for name in names) for names in SCHEMES]
        parts = next((each for each in named if here.issuperset(each)), None)
        if not parent or parts is None:
            continue
        queries = _queries(linears, parts, config)
        out = _out(parent, linears, queries)
        whole = {f"{parent}.{name}" for name in INTO_LOW_RANK} if _low_rank(parts) else set()
        gates = here - {*parts, out} - whole
        # all else is something of its own, as an index of keys
        if out and all(
            linears[gate].out_features in (queries, queries // _head(linears, parts, config))
            for gate in gates
        ):
            return BlockRules(
                attention=parent,
                sublayers=(parent,),
                row=(out,),
                per_head=tuple(
                    f"{parent}.{name}"
                    for name, _ in block.get_submodule(parent).named_parameters(recurse=False)
                    if name in PER_HEAD
                ),
                **_kinds(parts, tuple(sorted(gates)), config),
            )
    return BlockRules()


def _queries(linears: dict[str, nn.Linear], parts: tuple[str, ...], config: Any) -> int:
    """Numbers of a token that attention gives, mostly as many as its queries."""
    if parts[1:] and not _low_rank(parts):
        return linears[parts[0]].out_features
    return config.num_attention_heads * _head(linears, parts, config)


def _head(linears: dict[str, nn.Linear], parts: tuple[str, ...], config: Any) -> int:
    """Numbers of a token that a head gives."""
    if _low_rank(parts):
        return config.v_head_dim
    groups = kv_heads(config)
    if parts[1:]:
        return max(1, linears[parts[1]].out_features // groups)
    return linears[parts[0]].out_features // (config.num_attention_heads + 2 * groups)


def _kinds(parts: tuple[str, ...], gates: tuple[str, ...], config: Any) -> dict[str, Any]:
    """How the layers of queries, keys and values are split, and gates of what attention gives."""
    first, *others = parts
    if _low_rank(parts):
        return {"column": (*parts, *gates)}
    if others:
        return {"column": (first, *gates), "shared_kv": tuple(others)}
    if first.endswith(BY_HEAD):
        return {"column": (first, *gates)}
    if kv_heads(config) == config.num_attention_heads:
        return {"column": gates, "packed": {first: 3}}
    return {"column": gates, "gathered": (first,)}


def _low_rank(parts: tuple[str, ...]) -> bool:
    return parts[-1].endswith("kv_b_proj")


def _out(parent: str, linears: dict[str, nn.Linear], width: int) -> str | None:
    """The layer after attention: in its module, else the next one in the module around it."""
    around = parent.rpartition(".")[0]
    for place in filter(None, (parent, around)):
        for path, layer in linears.items():
            named = path.startswith(f"{place}.") and path.rpartition(".")[2] in OUT
            if named and layer.in_features in (width, width // 2):  # half of queries with a gate
                return path
    return None


def _mlps(block: nn.Module, linears: dict[str, nn.Linear], config: Any) -> Iterator[BlockRules]:
    """Layers out of the hidden width, and the one back into it."""
    hidden = getattr(config, "hidden_size", None)
    for row, layer in linears.items():
        width = layer.in_features
        if layer.out_features != hidden or width == hidden:
            continue
        outwards = {
            path: other.out_features
            for path, other in linears.items()
            if other.in_features == hidden and other.out_features in (width, 2 * width)
        }
        parent = row.rpartition(".")[0]
        here = [path for path in outwards if path.rpartition(".")[0] == parent]
        columns = here or list(outwards)
        one_module = bool(here) and parent != ""
        if one_module and not _holds_only(block, parent, [*columns, row]):
            continue  # a mixture of experts, a state space
        if not columns or (not one_module and len(columns) > 1):
            continue
        yield BlockRules(
            sublayers=(parent,) if one_module else tuple(columns),
            column=tuple(path for path in columns if outwards[path] == width),
            packed={path: 2 for path in columns if outwards[path] == 2 * width},
            row=(row,),
        )


def _holds_only(block: nn.Module, path: str, linears: list[str]) -> bool:
    """Are these all of a module's matrices? Beside them it may have norms and the like."""
    names = (name for name, p in block.get_submodule(path).named_parameters() if p.dim() > 1)
    return {f"{path}.{name.rpartition('.')[0]}" for name in names} <= {*linears}
