"""What a job's model must be: one with positions for its rows, which the plan can lay out."""

from functools import lru_cache

from helpers.engine.context.check import heads_for_all
from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.shape.parameters import KV, experts_of
from helpers.planner.shape.shape import Shape


def check_length(shape: Shape, seq_len: int) -> None:
    """Raise a UserError if the model has no positions for sequences of this length."""
    if shape.longest and seq_len > shape.longest:
        raise UserError(f"seq_len {seq_len} is longer than the model's {shape.longest} positions")


def check_timed(shape: Shape) -> None:
    """Raise a UserError if no formula knows the seconds of the model's layers: without kernels of
    its own a recurrence takes several times those of its products."""
    if shape.recurrent:
        raise UserError(
            f"{shape.family} has layers of linear attention, whose time no formula knows: "
            "dry_run(config, plan) measures the memory, FLOPs and messages of a step"
        )


def check_heads(shape: Shape, tp: int) -> None:
    """Raise a UserError if heads, key-value heads or MLP width cannot be split over tp."""
    if tp > 1 and not splittable(shape):
        raise UserError(f"{shape.family} cannot be split by tp: no rules are known for its layers")
    if not splits(shape, tp):
        width = next((width for width in _widths(shape) if width % tp), shape.ffn)
        raise UserError(
            f"tp={tp} does not divide {shape.heads} heads and an MLP of {width}, or does not "
            f"go with {shape.kv_heads} key-value heads"
        )


def check_dealt(shape: Shape, plan: ParallelPlan) -> None:
    """Raise a UserError if ranks of ep cannot deal the model's experts out, as many to each."""
    experts = experts_of(shape)
    if plan.ep > 1 and not experts:
        raise UserError(f"{shape.family} has no experts that ep could deal out: leave it out")
    if plan.ep > 1 and shape.source is None:
        raise UserError(
            f"how many experts a token of {shape.family} goes to is said by its configuration, "
            "which this Shape is without: give the configuration"
        )
    if experts % plan.ep:
        raise UserError(
            f"no formula knows ranks with more experts than others, as ep={plan.ep} makes of "
            f"{experts}: dry_run(config, plan) measures the memory, FLOPs and messages of a step"
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
    return shape.heads % tp == 0 and all(width % tp == 0 for width in _widths(shape)) and fits


@lru_cache(maxsize=1024)
def _widths(shape: Shape) -> tuple[int, ...]:
    """Of layers that tp splits evenly, beside those of keys and values: of each block's MLP."""
    if not shape.held:
        return (shape.ffn,)
    blocks = [kind.held for kind in shape.kinds] or [shape.held]
    cut = [one for held in blocks for one in held if one.cut is not None and one.role != KV]
    return tuple(sorted({one.sizes[one.cut] for one in cut}))


def splittable(shape: Shape) -> bool:
    """Are there rules by which tp splits the model's blocks?"""
    return not shape.held or any(one.cut is not None for one in shape.held)
