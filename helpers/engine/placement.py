"""Which rank sits where in the layout: the axes of the plan, laid over consecutive ranks.

Ranks are numbered node by node, so whatever varies fastest stays within a node. A placement is a
permutation of four letters, the last of which varies fastest:

    D  data: dp_replicate outside, dp_shard inside
    P  pipeline: pp
    C  context: cp
    T  tensor: tp

    cluster = DPCT    tensor-parallel ranks are neighbours: for what is sent in every layer
    spread  = TCPD    data-parallel ranks are neighbours, tensor-parallel ones far apart

Source: `placement_strategy` of the SageMaker model parallel library, whose cluster is DPT and whose
spread is TPD. It had no context axis; a letter may be left out where its axes have degree 1.
"""

from collections.abc import Mapping
from itertools import chain
from math import prod

import torch
from torch import Tensor

from helpers.engine.errors import UserError

LETTERS = {"D": ("dp_replicate", "dp_shard"), "P": ("pp",), "C": ("cp",), "T": ("tp",)}
NAMES = {"cluster": "DPCT", "spread": "TCPD"}


def rank_grid(degrees: Mapping[str, int], placement: str = "cluster") -> Tensor:
    """The global rank at each place of the layout.

    Args:
        degrees: ranks of each axis, as {"dp_shard": 2, "pp": 2, "tp": 2}.
        placement: `cluster`, `spread`, or a permutation of the letters.

    Returns:
        An integer tensor with a dim for each entry of `degrees`, in their order: what
        DeviceMesh takes, with the keys as its dim names.

    Raises:
        UserError: an axis or a placement that does not exist.
    """
    order = axis_order(degrees, placement)
    ranks = torch.arange(prod(degrees.values())).view([degrees[axis] for axis in order])
    return ranks.permute([order.index(axis) for axis in degrees])


def axis_order(degrees: Mapping[str, int], placement: str = "cluster") -> list[str]:
    """The axes of `degrees`, slowest first.

    Raises:
        UserError: as rank_grid.
    """
    known = list(chain.from_iterable(LETTERS.values()))
    for axis, degree in degrees.items():
        if axis not in known:
            raise UserError(f"no axis is called {axis!r}; there is {', '.join(known)}")
        if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
            raise UserError(f"{axis} must be a whole number of at least 1, not {degree!r}")
    letters = NAMES.get(placement, placement)
    if len(set(letters)) < len(letters) or not set(letters) <= set(LETTERS):
        raise UserError(
            f"placement must be cluster, spread or a permutation of DPCT, not {placement!r}"
        )
    for letter, axes in LETTERS.items():
        if letter not in letters and any(degrees.get(axis, 1) > 1 for axis in axes):
            wide = next(axis for axis in axes if degrees.get(axis, 1) > 1)
            raise UserError(
                f"the placement {placement} leaves out {letter}, but {wide} is {degrees[wide]}"
            )
    left_out = [letter for letter in LETTERS if letter not in letters]
    return [a for letter in [*left_out, *letters] for a in LETTERS[letter] if a in degrees]


def groups(degrees: Mapping[str, int], axis: str, placement: str = "cluster") -> list[list[int]]:
    """The groups of ranks that differ along `axis` alone: those that talk to each other for it.

    Raises:
        UserError: as rank_grid, or `axis` is not in `degrees`.
    """
    grid = rank_grid(degrees, placement)
    if axis not in degrees:
        raise UserError(f"no axis {axis!r} in the degrees; there is {', '.join(degrees)}")
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
