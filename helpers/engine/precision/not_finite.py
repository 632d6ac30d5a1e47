"""Where the numbers of a run that diverged first stopped being finite."""

from collections.abc import Iterable

from torch import Tensor

from ..data_parallel.owned_shards import OwnedShard
from ..ranks import over_ranks
from ..tensor.shards import is_finite
from .loss_scaling import MOST_BAD_STEPS


def not_finite(step: int, parts: Iterable[OwnedShard], gradients: dict[str, Tensor]) -> str:
    """In words, the same on every rank: the first rank's first weight or gradient that is not."""
    weights = {part.name: part.tensor.detach() for part in parts}
    places = [
        f"{what} {name}"
        for what, tensors in (("weight", weights), ("gradient", gradients))
        for name, tensor in tensors.items()
        if not is_finite(tensor)
    ]
    by_rank = enumerate(over_ranks(places[:1]))
    first = next((f"the {of[0]} on rank {rank}" for rank, of in by_rank if of), "the loss")
    return (
        f"step {step}: loss and gradient are not finite for the {MOST_BAD_STEPS}rd "
        f"step in a row, first in {first}; go on from an earlier checkpoint with a smaller "
        "learning rate"
    )
