"""What a job's model must be: one with positions for its rows, which the plan can lay out."""

from helpers.engine.context.check import heads_for_all
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.shape.shape import Shape


def check_length(shape: Shape, seq_len: int) -> None:
    """Raise a UserError if the model has no positions for sequences of this length."""
    if shape.longest and seq_len > shape.longest:
        raise UserError(f"seq_len {seq_len} is longer than the model's {shape.longest} positions")


def check_heads(shape: Shape, tp: int) -> None:
    """Raise a UserError if heads, key-value heads or MLP width cannot be split over tp."""
    if tp > 1 and not splittable(shape):
        raise UserError(f"{shape.family} cannot be split by tp: no rules are known for its layers")
    if not splits(shape, tp):
        raise UserError(
            f"tp={tp} does not divide {shape.heads} heads and an MLP of {shape.ffn}, or does not "
            f"go with {shape.kv_heads} key-value heads"
        )


def check_ulysses(shape: Shape, plan: ParallelPlan) -> None:
    """Raise a UserError if ulysses has no head for every rank of cp."""
    if plan.cp > 1 and plan.cp_attention not in ways(shape, plan.tp, plan.cp):
        raise UserError(
            f"cp_attention=ulysses gives every rank a head, and cp={plan.cp} does not divide "
            f"{shape.heads} heads and {shape.kv_heads} of keys over tp={plan.tp}: ring and gather "
            "work with any number of heads"
        )


def ways(shape: Shape, tp: int, cp: int) -> tuple[str, ...]:
    """How ranks of cp can attend to each other's tokens."""
    groups = max(1, shape.kv_heads // tp)
    fits = heads_for_all(shape.heads // tp, groups, cp)
    return ("ring", "gather", "ulysses") if fits else ("ring", "gather")


def splits(shape: Shape, tp: int) -> bool:
    """Can the model's blocks be split over tp ranks?"""
    if tp > 1 and not splittable(shape):
        return False
    fits = shape.kv_heads % tp == 0 or tp % shape.kv_heads == 0
    return shape.heads % tp == 0 and shape.ffn % tp == 0 and fits


def splittable(shape: Shape) -> bool:
    """Are there rules by which tp splits the model's blocks?"""
    return not shape.held or any(one.cut is not None for one in shape.held)
