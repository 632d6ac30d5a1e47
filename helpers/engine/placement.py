"""Which rank stands where: the axes of a plan laid over numbered ranks.

Ranks are numbered node by node, so whatever varies fastest stays within a node. A placement is a
permutation of four letters, the last of which varies fastest:

    D  data: dp_replicate outside, dp_shard inside
    P  pipeline: pp
    C  context: cp
    T  tensor: tp

    cluster = DPCT    tensor-parallel ranks are neighbours: for what is sent in every layer
    spread  = TCPD    data-parallel ranks are neighbours, tensor-parallel ones far apart

Source of the placements: `placement_strategy` of the SageMaker model parallel library, whose
cluster is DPT and whose spread is TPD. A letter may be left out where its axes have degree 1.
"""

import math
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor

from .errors import UserError, check_count

LETTERS = {"D": ("dp_replicate", "dp_shard"), "P": ("pp",), "C": ("cp",), "T": ("tp",)}
PLACEMENTS = {"cluster": "DPCT", "spread": "TCPD"}


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
    ranks = torch.arange(math.prod(degrees.values())).view([degrees[axis] for axis in order])
    return ranks.permute([order.index(axis) for axis in degrees])


def axis_order(degrees: Mapping[str, int], placement: str = "cluster") -> list[str]:
    """The axes of `degrees`, slowest first.

    Raises:
        UserError: as rank_grid.
    """
    if not isinstance(degrees, Mapping) or not degrees:
        raise UserError(f"give degrees, as {{'dp_shard': 2, 'tp': 2}}, not {degrees!r:.40}")
    known = list(chain.from_iterable(LETTERS.values()))
    for axis, degree in degrees.items():
        if axis not in known:
            raise UserError(f"no axis is called {axis!r}; there is {', '.join(known)}")
        check_count(axis, degree)
    letters = PLACEMENTS.get(placement, placement) if isinstance(placement, str) else "?"
    if len(set(letters)) < len(letters) or not set(letters) <= set(LETTERS):
        raise UserError(
            f"placement must be cluster, spread or a permutation of DPCT, not {placement!r:.40}"
        )
    for letter, axes in LETTERS.items():
        if letter not in letters and any(degrees.get(axis, 1) > 1 for axis in axes):
            wide = next(axis for axis in axes if degrees.get(axis, 1) > 1)
            raise UserError(
                f"the placement {placement} leaves out {letter}, but {wide} is {degrees[wide]}"
            )
    left_out = [letter for letter in LETTERS if letter not in letters]
    return [a for letter in [*left_out, *letters] for a in LETTERS[letter] if a in degrees]
