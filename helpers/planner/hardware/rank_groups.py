"""Which ranks of a layout talk to each other, and where each one sits.

groups({"dp_shard": 2, "tp": 2}, "tp")          [[0, 1], [2, 3]]
coordinates({"dp_shard": 2, "tp": 2})[1]        {"dp_shard": 0, "tp": 1}
"""

from collections.abc import Mapping

import torch

from helpers.engine.errors import UserError
from helpers.engine.placement import rank_grid


def groups(degrees: Mapping[str, int], axis: str, placement: str = "cluster") -> list[list[int]]:
    """The groups of ranks that differ along `axis` alone: those that talk to each other for it.

    Raises:
        UserError: as rank_grid, or `axis` is not in `degrees`.
    """
    grid = rank_grid(degrees, placement)
    if not isinstance(axis, str) or axis not in degrees:
        raise UserError(f"no axis {axis!r:.40} in the degrees; there is {', '.join(degrees)}")
    return grid.movedim(list(degrees).index(axis), -1).reshape(-1, degrees[axis]).tolist()


def coordinates(degrees: Mapping[str, int], placement: str = "cluster") -> list[dict[str, int]]:
    """Where each rank is along each axis of `degrees`; the list's index is the rank.

    Raises:
        UserError: as rank_grid.
    """
    grid = rank_grid(degrees, placement)
    places = grid.flatten().argsort()  # of each rank, in the flattened grid
    by_axis = torch.unravel_index(places, grid.shape)
    return [dict(zip(degrees, place)) for place in torch.stack(by_axis, 1).tolist()]
