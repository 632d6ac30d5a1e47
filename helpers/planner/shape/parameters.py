"""The parameter tensors of a model, and what of each one rank holds: exactly as the engine does.

    block_parameters(shape, tp=4)            # Held tensors of a block
    Held((4096, 1024), cut=0).on(tp=4, rank=1)          # (1024, 1024)
    shard((1024, 1024), ranks=3, rank=0)     # elements of the part that ZeRO leaves to a rank

Parts are torch.chunk's: of an odd number of rows the last rank has fewer, or none.
"""

from functools import lru_cache
from math import gcd, prod
from operator import mul
from typing import NamedTuple

from helpers.planner.shape.shape import Linear, Shape

# families that keep a matrix as [inputs, outputs], query, key and value as thirds of its columns
CONV1D = ("gpt2",)
KV, INNER, OUTSIDE, EXPERTS = "kv", "inner", "outside", "experts"  # roles of Held
FUSED = ("gpt_neox", "falcon")  # that keep query, key and value as rows of one matrix


class Held(NamedTuple):
    """A parameter as it is held, whole over the data axes.

    cut: the dimension that tensor parallelism splits; None where every rank holds it whole.
    role: `kv` of keys and values, which are split by whole heads; `inner` of what no rule splits
        inside of a split sublayer, as norms of single heads; `outside` of what lies in none of
        these, as norms between them; `experts` of all experts of a layer, [experts, ..].
    """

    sizes: tuple[int, ...]
    cut: int | None = None
    role: str = ""

    @property
    def elements(self) -> int:
        return prod(self.sizes)

    def on(self, tp: int, rank: int = 0) -> tuple[int, ...]:
        """Its sizes on a tensor rank."""
        if self.cut is None:
            return self.sizes
        sizes = list(self.sizes)
        sizes[self.cut] = part(sizes[self.cut], tp, rank)
        return tuple(sizes)


def part(size: int, ranks: int, rank: int) -> int:
    """How many of `size` torch.chunk gives to a rank."""
    each = -(-size // ranks)
    return max(0, min(each, size - each * rank))


def shard(sizes: tuple[int, ...], ranks: int, rank: int = 0) -> int:
    """Elements of a tensor that a rank keeps where `ranks` share its first dimension."""
    return part(sizes[0], ranks, rank) * prod(sizes[1:])


@lru_cache(maxsize=4096)
def block_parameters(shape: Shape, tp: int) -> tuple[Held, ...]:
    """Those of one block.

    With fewer key-value heads than tensor ranks every rank holds them all, and with them what is in
    one matrix with them, though it uses only some rows: as tensor/split.py of the engine has it.
    """
    whole = shape.kv_heads % tp != 0
    if shape.held:
        return _whole_heads(shape.held) if whole else shape.held
    query, key_value, *others = shape.block
    norms = shape.block_norm // shape.hidden
    return (
        *_attention(shape, query, key_value, whole),
        *(held for linear in others for held in _linear(linear, shape.family in CONV1D)),
        *(Held((shape.hidden,)) for _ in range(norms)),
    )


@lru_cache(maxsize=4096)
def blocks_parameters(shape: Shape, tp: int) -> tuple[tuple[Held, ...], ...]:
    """Those of each block, in the model's order."""
    if not shape.kinds:
        return (block_parameters(shape, tp),) * shape.layers
    kinds = kinds_parameters(shape, tp)
    return tuple(kinds[kind] for kind in shape.kind_of)


@lru_cache(maxsize=4096)
def kinds_parameters(shape: Shape, tp: int) -> tuple[tuple[Held, ...], ...]:
    """Those of a block of each kind, where blocks differ."""
    whole = shape.kv_heads % tp != 0
    return tuple(_whole_heads(kind.held) if whole else kind.held for kind in shape.kinds)


def _whole_heads(held: tuple[Held, ...]) -> tuple[Held, ...]:
    return tuple(one._replace(cut=None) if one.role == KV else one for one in held)


def held_by_all(shape: Shape, tp: int) -> list[Held]:
    """Of a block's split layers, what every tensor rank holds whole: for want of key-value heads,
    though each uses some of its rows, or because no rule splits it."""
    whole = shape.kv_heads % tp != 0
    if shape.held:
        roles = {KV, INNER} if whole else {INNER}
        return [held for held in shape.held if held.role in roles]
    query, key_value, *_ = shape.block
    return [held for held in _attention(shape, query, key_value, whole) if held.cut is None]


def outside_parameters(shape: Shape) -> int:
    """Of a block, those in no sublayer that tp splits: its norms."""
    if shape.held:
        return sum(held.elements for held in shape.held if held.role == OUTSIDE)
    return shape.block_norm


def _attention(shape: Shape, query: Linear, key_value: Linear, whole: bool) -> list[Held]:
    inputs, rows = query.inputs, query.outputs + key_value.outputs
    cut = None if whole else 0
    if shape.family in CONV1D:
        held = [Held((inputs, 3, rows // 3), 2), Held((3, rows // 3), 1)]
    elif shape.family in FUSED:
        held = [Held((rows, inputs), cut), Held((rows,), cut)]
    else:
        half = key_value.outputs // 2
        held = [Held((query.outputs, inputs), 0), Held((query.outputs,), 0)]
        held += 2 * [Held((half, inputs), cut), Held((half,), cut)]
    return held if query.bias else [one for one in held if len(one.sizes) == len(held[0].sizes)]


def _linear(linear: Linear, turned: bool) -> list[Held]:
    """A layer, or the two of a gated MLP that read the same."""
    several = 2 if "," in linear.name else 1
    rows = linear.outputs // several
    column = linear.cut != "row"
    sizes = (linear.inputs, rows) if turned else (rows, linear.inputs)
    held = [Held(sizes, int(column == turned))]
    if linear.bias:
        held.append(Held((rows,), 0 if column else None))
    return several * held


def begin_parameters(shape: Shape) -> tuple[Held, ...]:
    """Of the embeddings."""
    if shape.begin:
        return shape.begin
    table = Held((shape.vocab, shape.hidden), 0)
    positions = (Held((shape.positions, shape.hidden)),) if shape.positions else ()
    return (table, *positions)


def end_parameters(shape: Shape) -> tuple[Held, ...]:
    """Of the last norm and the head; its matrix too where that is the embedding."""
    if shape.end:
        return shape.end
    norms = [Held((shape.hidden,)) for _ in range(shape.final_norm // shape.hidden)]
    bias = (Held((shape.vocab,), 0),) if shape.head_bias else ()
    return (*norms, Held((shape.vocab, shape.hidden), 0), *bias)


def without_experts(held: tuple[Held, ...]) -> tuple[Held, ...]:
    """Those that every data rank computes with, where ranks of ep deal a layer's experts out."""
    return tuple(one for one in held if one.role != EXPERTS)


def only_experts(held: tuple[Held, ...]) -> tuple[Held, ...]:
    """The others."""
    return tuple(one for one in held if one.role == EXPERTS)


def experts_of(shape: Shape) -> int:
    """Of a layer that ep can deal out; 0 of a model that has none such. Of layers with several
    numbers, what divides them all."""
    blocks = [kind.held for kind in shape.kinds] or [shape.held]
    return gcd(*(one.sizes[0] for held in blocks for one in only_experts(held)))


@lru_cache(maxsize=4096)
def experts_share(shape: Shape) -> float:
    """Of the products that a token goes through in a block's MLP, the share that is experts', by
    parameters; where blocks differ, in their mean."""
    blocks = [kind.held for kind in shape.kinds] or [shape.held]
    experts = [sum(one.elements for one in only_experts(held)) for held in blocks]
    several = [shape.kind_of.count(kind) for kind in range(len(shape.kinds))] or [shape.layers]
    having = sum(count for count, own in zip(several, experts, strict=True) if own)
    if not having:
        return 0.0
    active = [own - shape.idle / having if own else 0.0 for own in experts]
    mix = shape.mix or several
    mean = sum(map(mul, active, mix)) / sum(mix)
    return min(1.0, mean / sum(linear.parameters for linear in shape.block[-2:]))  # or biases, too


@lru_cache(maxsize=65536)
def elements(
    held: tuple[Held, ...], tp: int, tensor_rank: int, shards: int, shard_rank: int
) -> int:
    """Of all these on one rank."""
    return sum(shard(one.on(tp, tensor_rank), shards, shard_rank) for one in held)
