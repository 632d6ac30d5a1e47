"""What a model keeps for its backward, where no table says it: seen in dry runs.

Its family's table, or Llama's, is right for the most of a block. What is more or less is told apart
by how it follows a row's length and the ranks of the tensor axis: four forwards on tensors without
values, or five where scores of attention are kept.
"""

import copy
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from helpers.engine.errors import UserError
from helpers.engine.models.architecture import text_config
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.kept_by_blocks import kept_by_blocks, kinds_of
from helpers.planner.model.widths import BYTES, Widths
from helpers.planner.shape.parameters import blocks_parameters
from helpers.planner.shape.shape import Shape

TOKENS = 2048  # of each forward: what does not follow their number is lost in what does
LONGEST = 256  # tokens of a row, where no window has to be narrower


class Lengths(NamedTuple):
    """Of rows, in tokens: both even, or the shorter one half of the other."""

    short: int
    long: int

    def following(self, short: float, long: float) -> float:
        """Of a number a token, seen at both, how much follows the length, at the longer one."""
        return (long - short) * self.long / (self.long - self.short)


def measured_kept(
    shape: Shape, table: dict[str, Widths], precision: str, device: str, narrow: bool = False
) -> tuple[dict[str, Widths], Widths]:
    """Elements that a block keeps, by policy, in the mean where blocks differ; and those that a
    model keeps beside its blocks.

    Args:
        shape: with its source.
        table: its family's, or another's, where to begin.
        device: `cpu`, or `cuda`, whose attention and dropout are fused kernels.
        narrow: are rows longer than the shape's window?

    Raises:
        UserError: as `kept_by_blocks`.
    """
    on, rows = "cpu" if device == "cpu" else "meta", _lengths(shape, narrow)
    plan = ParallelPlan(precision=precision, microbatches=1)
    kept = {
        policy: widths + _not_said(shape, widths, replace(plan, activation=policy), on, rows)
        for policy, widths in table.items()
    }
    return kept, _shared(shape, plan, on, rows)


def _lengths(shape: Shape, narrow: bool) -> Lengths:
    if narrow:
        short = (shape.window + 2) // 2 * 2
        long = min(2 * short, shape.longest or 2 * short) // 2 * 2
        if long > short:
            return Lengths(short, long)
    half = min(LONGEST, shape.longest or LONGEST, shape.window or LONGEST) // 2
    return Lengths(max(1, half), 2 * max(1, half))


def _not_said(
    shape: Shape, table: Widths, plan: ParallelPlan, device: str, rows: Lengths
) -> Widths:
    """What a block keeps beside the table's; below 0 where that says too much."""

    def off(seq_len: int, **axes: int | bool) -> float:
        own = replace(plan, **axes)
        kept, _ = _kept(shape, own, seq_len, rows.long, device)
        kept -= 4 * shape.heads / own.tp / BYTES[own.precision]  # sums, which are counted apart
        return kept - table.on(shape, own.tp, own.sequence_parallel, seq_len)

    long = off(rows.long)
    scores, whole = rows.following(off(rows.short), long), 0.0
    all_scores = shape.heads * rows.long
    halved = parted = long - scores / 2
    with suppress(UserError):  # a plan that is refused here is refused whatever is said of it
        halved = parted = off(rows.long, tp=2)
        if scores > all_scores / 2:  # are they of a rank's heads, or of all?
            of_rank = rows.following(off(rows.short, tp=2), halved)
            whole = max(0.0, 2 * of_rank - scores)
        parted = off(rows.long, tp=2, sequence_parallel=True)
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
    short, long = (_kept(shape, plan, seq_len, rows.long, device)[1] for seq_len in rows)
    masks = max(0.0, rows.following(short, long))
    return Widths(
        inside=max(0.0, long - masks) / shape.hidden,
        whole_scores=masks / (shape.heads * rows.long),
    )


@lru_cache(maxsize=256)
def _kept(
    shape: Shape, plan: ParallelPlan, seq_len: int, longest: int, device: str
) -> tuple[float, float]:
    """Elements a token of a block, in the mean over the model's blocks, and of all that is beside
    them; seen in a copy with two blocks of each kind, if it has all."""
    sizes = [sum(held.elements for held in block) for block in blocks_parameters(shape, 1)]
    kinds = Counter(kinds_of(shape.source.config, sizes))
    small = copy.deepcopy(shape.source.config)
    fewer_layers(text_config(small), 2)
    batch = max(1, TOKENS // longest) * longest // seq_len
    for config in (small, shape.source.config):
        seen = kept_by_blocks(config, plan, batch, seq_len, device)
        if kinds.keys() <= seen.of_block.keys():
            break
    in_mean = sum(count * seen.of_block[kind] for kind, count in kinds.items()) / shape.layers
    of_token = batch * seq_len * BYTES[plan.precision]
    return in_mean / of_token, seen.beside / of_token
