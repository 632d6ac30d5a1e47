"""What the blocks of a model keep for their backward, where no table says it: seen in dry runs.

Llama's table is right for the most of it. What is more or less is told apart by how it follows a
row's length and the ranks of the tensor axis: four forwards on tensors without values.
"""

import copy
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from helpers.engine.errors import UserError
from helpers.engine.models.architecture import text_config
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.kept_by_blocks import kept_by_blocks
from helpers.planner.model.widths import BYTES, Widths
from helpers.planner.shape.parameters import blocks_parameters
from helpers.planner.shape.shape import Shape

TOKENS = 2048  # of each forward: what does not follow their number is lost in what does
LONGEST = 256  # tokens of a row


def measured_kept(
    shape: Shape, table: dict[str, Widths], precision: str, device: str
) -> dict[str, Widths]:
    """Elements that a block keeps, by policy; in the mean, where blocks differ.

    Args:
        shape: counted from its class.
        table: another family's, where to begin.
        device: `cpu`, or `cuda`, whose attention and dropout are fused kernels.

    Raises:
        UserError: as `kept_by_blocks`.
    """
    on = "cpu" if device == "cpu" else "meta"
    plan = ParallelPlan(precision=precision, microbatches=1)
    return {
        policy: widths + _beside(shape, widths, replace(plan, activation=policy), on)
        for policy, widths in table.items()
    }


def _beside(shape: Shape, table: Widths, plan: ParallelPlan, device: str) -> Widths:
    """What is kept beside the table's; below 0 where that says too much."""
    length = max(2, min(LONGEST, shape.longest or LONGEST) // 2 * 2)

    def off(seq_len: int, **axes: int | bool) -> float:
        """Elements a token that the table does not say."""
        own, rows = replace(plan, **axes), TOKENS // length * length // seq_len
        kept = _block_bytes(shape, own, rows, seq_len, device) / (rows * seq_len)
        kept -= 4 * shape.heads / own.tp  # sums of attention, which are counted apart
        said = table.on(shape, own.tp, own.sequence_parallel, seq_len)
        return kept / BYTES[plan.precision] - said

    long = off(length)
    scores = 2 * (long - off(length // 2))
    halved = parted = long - scores / 2
    with suppress(UserError):  # a plan that is refused here is refused whatever is said of it
        halved = parted = off(length, tp=2)
        parted = off(length, tp=2, sequence_parallel=True)
    by_heads, outside = 2 * (long - halved) - scores, 2 * (halved - parted)
    return Widths(
        outside=outside / shape.hidden,
        inside=(long - scores - by_heads - outside) / shape.hidden,
        query=by_heads / (shape.heads * shape.head_dim),
        scores=scores / (shape.heads * length),
    )


def _block_bytes(shape: Shape, plan: ParallelPlan, batch: int, seq_len: int, device: str) -> float:
    """In the mean over the model's blocks; seen in a copy with two of each kind, if it has all."""
    sizes = Counter(sum(held.elements for held in block) for block in blocks_parameters(shape, 1))
    small = copy.deepcopy(shape.source.config)
    fewer_layers(text_config(small), 2)
    for config in (small, shape.source.config):
        kept = kept_by_blocks(config, plan, batch, seq_len, device)
        if sizes.keys() <= kept.keys():
            break
    return sum(count * kept[size] for size, count in sizes.items()) / shape.layers
