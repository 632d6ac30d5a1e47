"""What the blocks of a model keep for their backward, where no table says it: seen in dry runs.

Llama's table is right for the most of it. What is more or less is told apart by how it follows a
row's length and the ranks of the tensor axis: four forwards on tensors without values.
"""

from dataclasses import replace

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.dry_run.kept_by_block import kept_by_block
from helpers.planner.model.widths import BYTES, Widths
from helpers.planner.shape.shape import Shape

TOKENS = 2048  # of each forward: what does not follow their number is lost in what does
LONGEST = 512  # tokens of a row


def measured_kept(
    shape: Shape, table: dict[str, Widths], precision: str, device: str
) -> dict[str, Widths]:
    """Elements that a block keeps, by policy.

    Args:
        shape: counted from its class.
        table: another family's, where to begin.
        device: `cpu`, or `cuda`, whose attention and dropout are fused kernels.

    Raises:
        UserError: as `kept_by_block`.
    """
    on = "cpu" if device == "cpu" else "meta"
    plan = ParallelPlan(precision=precision, microbatches=1)
    return {
        policy: widths + _beside(shape, widths, replace(plan, activation=policy), on)
        for policy, widths in table.items()
    }


def _beside(shape: Shape, table: Widths, plan: ParallelPlan, device: str) -> Widths:
    """What is kept beside the table's; below 0 where that says too much."""
    length = min(LONGEST, shape.longest or LONGEST) // 2 * 2

    def off(seq_len: int, **axes: int | bool) -> float:
        """Elements a token that the table does not say."""
        own, rows = replace(plan, **axes), TOKENS // length * length // seq_len
        kept = kept_by_block(shape.source.config, own, rows, seq_len, device) / (rows * seq_len)
        kept -= 4 * shape.heads / own.tp  # sums of attention, which are counted apart
        said = table.on(shape, own.tp, own.sequence_parallel, seq_len)
        return kept / BYTES[plan.precision] - said

    long = off(length)
    scores = 2 * (long - off(length // 2))
    try:
        halved, parted = (off(length, tp=2, sequence_parallel=way) for way in (False, True))
    except UserError:  # tp splits nothing
        halved = parted = long - scores / 2
    by_heads, outside = 2 * (long - halved) - scores, 2 * (halved - parted)
    return Widths(
        outside=outside / shape.hidden,
        inside=(long - scores - by_heads - outside) / shape.hidden,
        query=by_heads / (shape.heads * shape.head_dim),
        scores=scores / (shape.heads * length),
    )
