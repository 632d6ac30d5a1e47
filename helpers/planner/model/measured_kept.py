"""What a model keeps for its backward and what that works with, where no table says it: seen in dry
runs.

Its family's table, or Llama's, is right for the most of what a block keeps. What is more or less is
told apart by how it follows a row's length and the ranks of the tensor axis: four forwards on
tensors without values, or five where scores of attention are kept.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from helpers.engine.errors import UserError
from helpers.engine.models.architecture import Same, text_config
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.kept_by_blocks import Kept, Kind, kept_by_blocks, kinds_of
from helpers.planner.model.widths import BYTES, Widths
from helpers.planner.shape.parameters import block_parameters
from helpers.planner.shape.shape import Shape

TOKENS = 2**26  # of each forward: what does not follow their number is lost in what does
LONGEST = 4096  # tokens of a row, where no window has to be narrower
DEALT = {"dp_shard": 2, "ep": 2}  # over more ranks a token's own share is the same


class Lengths(NamedTuple):
    """Of rows, in tokens: both even, or the shorter one half of the other."""

    short: int
    long: int

    def following(self, short: float, long: float) -> float:
        """Of a number a token, seen at both, how much follows the length, at the longer one."""
        return (long - short) * self.long / (self.long - self.short)


class OfToken(NamedTuple):
    """Elements a token: a block keeps, in the mean over the shape's; there are beside them; and the
    backward of a block works with, at most."""

    kept: float
    beside: float
    work: float


class Measured(NamedTuple):
    """Elements of a block, in the mean where blocks differ.

    kept: for its backward, by policy.
    shared: beside all blocks.
    work: that its backward works with, at most.
    """

    kept: dict[str, Widths]
    shared: Widths
    work: Widths


def measured_kept(
    shape: Shape,
    table: dict[str, Widths],
    precision: str,
    device: str,
    narrow: bool = False,
    dealt: bool = False,
) -> Measured:
    """What is kept, and what a backward works with.

    Args:
        shape: with its source.
        table: its family's, or another's, where to begin.
        device: `cpu`, or `cuda`, whose attention and dropout are fused kernels.
        narrow: are rows as long as the shape's window, or longer?
        dealt: do ranks deal experts out?

    Raises:
        UserError: as `kept_by_blocks`.
    """
    on, rows = "cpu" if device == "cpu" else "meta", _lengths(shape, narrow)
    plan = ParallelPlan(precision=precision, microbatches=1, **(DEALT if dealt else {}))

    def seen(policy: str, number: Callable[[OfToken, ParallelPlan, int], float]) -> Widths:
        return _followed(shape, replace(plan, activation=policy), on, rows, number)

    def not_said(policy: str) -> Widths:
        def beside(one: OfToken, plan: ParallelPlan, seq_len: int) -> float:
            sums = 4 * shape.heads / plan.tp / BYTES[plan.precision]  # which are counted apart
            said = table[policy].on(shape, plan.tp, plan.sequence_parallel, seq_len)
            return one.kept - sums - said

        return seen(policy, beside)

    kept = {policy: widths + not_said(policy) for policy, widths in table.items()}
    return Measured(kept, _shared(shape, plan, on, rows), seen("none", lambda one, *_: one.work))


def _lengths(shape: Shape, narrow: bool) -> Lengths:
    longest = shape.longest or math.inf
    if narrow:
        short = max(int(min(LONGEST, longest)) // 4 * 2, (shape.window + 2) // 2 * 2)
        long = min(2 * short, longest // 2 * 2)
        if shape.window <= short < long:
            return Lengths(short, int(long))
    half = max(1, int(min(LONGEST, longest, shape.window - 1 if shape.window else LONGEST)) // 2)
    return Lengths(half, 2 * half)


def _followed(
    shape: Shape,
    plan: ParallelPlan,
    device: str,
    rows: Lengths,
    number: Callable[[OfToken, ParallelPlan, int], float],
) -> Widths:
    """A number of elements a token, by what it follows."""

    def at(seq_len: int, **axes: int | bool) -> float:
        own = replace(plan, **axes)
        return number(_of_token(shape, own, seq_len, device), own, seq_len)

    long = at(rows.long)
    scores, whole = rows.following(at(rows.short), long), 0.0
    all_scores = shape.heads * rows.long
    halved = parted = long - scores / 2
    with suppress(UserError):  # a plan that is refused here is refused whatever is said of it
        halved = parted = at(rows.long, tp=2)
        if scores > all_scores / 2:  # are they of a rank's heads, or of all?
            of_rank = rows.following(at(rows.short, tp=2), halved)
            whole = max(0.0, 2 * of_rank - scores)
        parted = at(rows.long, tp=2, sequence_parallel=True)
    by_heads, outside = 2 * (long - halved) - (scores - whole), 2 * (halved - parted)
    return Widths(
        outside=outside / shape.hidden,
        inside=(long - scores - by_heads - outside) / shape.hidden,
        query=by_heads / (shape.heads * shape.head_dim),
        scores=(scores - whole) / all_scores,
        whole_scores=whole / all_scores,
    )


def _shared(shape: Shape, plan: ParallelPlan, device: str, rows: Lengths) -> Widths:
    """Beside blocks, on every tensor rank: what follows a row's length is masks."""
    short, long = (_of_token(shape, plan, seq_len, device).beside for seq_len in rows)
    masks = max(0.0, rows.following(short, long))
    return Widths(
        inside=max(0.0, long - masks) / shape.hidden,
        whole_scores=masks / (shape.heads * rows.long),
    )


def _of_token(shape: Shape, plan: ParallelPlan, seq_len: int, device: str) -> OfToken:
    batch, kinds = TOKENS // seq_len, _kinds(shape)
    seen = _seen(shape.source, tuple(kinds), plan, batch, seq_len, device)
    kept = sum(count * seen.of_block[kind] for kind, count in kinds.items()) / sum(kinds.values())
    work = max(seen.works.get(kind, 0) for kind, count in kinds.items() if count)
    of_token = batch * seq_len * BYTES[plan.precision]
    return OfToken(kept / of_token, seen.beside / of_token, work / of_token)


def _kinds(shape: Shape) -> Counter[Kind]:
    """Of the model's blocks, and how many of the shape's are of each."""
    if shape.kinds:
        counts: Counter[Kind] = Counter()
        for kind, count in zip(shape.kinds, shape.mix):
            counts[Kind(kind.elements, kind.layer_type)] += count
        return counts
    size = sum(held.elements for held in block_parameters(shape, 1))
    return Counter(kinds_of(shape.source.config, [size] * shape.layers)[:1])


@lru_cache(maxsize=256)
def _seen(
    source: Same,
    kinds: tuple[Kind, ...],
    plan: ParallelPlan,
    batch: int,
    seq_len: int,
    device: str,
) -> Kept:
    """In a copy with two blocks of each kind, if it has all."""
    small = copy.deepcopy(source.config)
    fewer_layers(text_config(small), 2)
    for config in (small, source.config):
        seen = kept_by_blocks(config, plan, batch, seq_len, device)
        if seen.of_block.keys() >= {*kinds}:
            break
    return seen
