"""What each rank printed and returned, a column per rank, and how the tensors compare."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 6  # numbers of a tensor


def side_by_side(values: Sequence[Any], printed: Sequence[str] = ()) -> "pd.DataFrame":
    """A row for each printed line and each value; the last column compares the ranks.

    Args:
        values: by rank, as `on_ranks` returns them; a dictionary or a tuple makes several rows.
        printed: by rank, what it printed.
    """
    rows: dict[str, list[Any]] = {}
    lines_of = zip_longest(*(text.splitlines() for text in printed), fillvalue="")
    for number, lines in enumerate(lines_of, 1):
        rows[f"printed {number}"] = list(lines)
    named = [_named(value) for value in values]
    for name in dict.fromkeys(name for one in named for name in one):
        rows[name] = [one.get(name) for one in named]
    columns = [f"rank {rank}" for rank in range(len(values))]
    return table_of(
        {
            name: dict(zip(columns, map(described, row))) | {"over the ranks": compared(row)}
            for name, row in rows.items()
        },
        "",
    )


def described(value: Any) -> str:
    """A tensor by its shape and first numbers, anything else as it prints itself."""
    if value is None:
        return "–"
    if not isinstance(value, Tensor):
        return value if isinstance(value, str) else repr(value)
    numbers = ", ".join(f"{number:.4g}" for number in value.flatten()[:SHOWN].tolist())
    more = ", …" if value.numel() > SHOWN else ""
    return f"{list(value.shape)} {numbers}{more}" if value.dim() else numbers


def compared(values: Sequence[Any]) -> str:
    """Whether the ranks have the same, by how much tensors differ, and their sum."""
    if not all(isinstance(value, Tensor) for value in values):
        return "equal" if all(described(v) == described(values[0]) for v in values) else "differ"
    if len({(value.shape, value.dtype) for value in values}) > 1:
        return "shapes or types differ"
    stacked = torch.stack([_wide(value) for value in values])
    same = (stacked == stacked[0]) | ((stacked != stacked) & (stacked[0] != stacked[0]))
    if same.all():
        return "equal"
    if stacked.is_complex():
        apart = max((one - other).abs().max() for one in stacked for other in stacked)
    else:
        apart = (stacked.max(0).values - stacked.min(0).values).max()
    return f"differ by up to {apart:.4g}; sum {described(stacked.sum(0))}"


def _wide(value: Tensor) -> Tensor:
    """In a type that can be compared and added; whole numbers of 8 bytes are exact as they are."""
    if value.is_complex() or value.dtype == torch.int64:
        return value
    return value.double()


def _named(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): one for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return {f"value {number}": one for number, one in enumerate(value, 1)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":  # it prints itself shortened
        value = torch.from_numpy(value)
    return {} if value is None else {"value": value}
