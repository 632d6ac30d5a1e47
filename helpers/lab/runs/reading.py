"""What the files of a run say, each as what it must be, or one line that says what is wrong."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, is_number
from helpers.engine.files.run_record import COUNTED
from helpers.lab.paths import shown

if TYPE_CHECKING:
    import pandas as pd

MAY_BE_0 = ("step", "tokens")  # of what a step counts
LARGE = 1e18  # far beyond the bytes, seconds and tokens of any run
LARGE_LOSS = 1e100  # beyond what float32 has, and small enough for sums


def is_size(value: object) -> bool:
    """Is this a number of bytes or seconds, or None where it was not measured?"""
    return value is None or (is_number(value) and 0 <= value < LARGE)


def are_sizes(values: object) -> bool:
    return isinstance(values, dict) and all(map(is_size, values.values()))


def is_loss(value: object) -> bool:
    """Is this a number, or None where it was not finite?"""
    return value is None or (is_number(value) and abs(value) < LARGE_LOSS)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        UserError: there is no such file, or it holds no object.
    """
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"there is no {shown(path)}: the run did not get that far") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{shown(path)} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{shown(path)} is not a JSON object")
    return value


def read_text(path: Path) -> str:
    """The text of a log, or a UserError where there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        raise UserError(f"there is no {shown(path)}") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines. A last line that a crash cut off is left out, and that is said."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        raise UserError(f"there is no {shown(path)}: the run did not get that far") from None
    rows = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError
        except (ValueError, RecursionError):
            if number == len(lines):  # no newline after it
                print(f"note: the last line of {shown(path)} is cut off and was left out")
                break
            raise UserError(f"{shown(path)}, line {number} is not a JSON object") from None
        rows.append(row)
    return rows


def numbers(metrics: "pd.DataFrame", name: str, path: Path) -> "pd.Series":
    """A column of the metrics at `path`: whole where it counts something (COUNTED), with NaN for
    what is null or not finite where it does not.

    Raises:
        UserError: no line has it, a value is none that a step can have, or steps are not in order.
    """
    if name not in metrics:
        raise UserError(f"{shown(path)} has no {name}")
    for row, value in enumerate(metrics[name], 1):
        if not _fits(name, value):
            raise UserError(f"{shown(path)}, row {row} has {name} {value!r:.40}, which no step has")
    if name in COUNTED and "step" in metrics:
        _check_order(list(metrics["step"]), path)
    if name in COUNTED:
        return metrics[name]
    return metrics[name].astype(float).where(lambda values: values.abs() < math.inf)


def _fits(name: str, value: object) -> bool:
    if name in COUNTED:
        return value is not None and is_size(value) and (value > 0 or name in MAY_BE_0)
    no_number = isinstance(value, float) and not math.isfinite(value)
    return no_number or (is_loss if name == "loss" else is_size)(value)


def _check_order(steps: list[Any], path: Path) -> None:
    """Raise a UserError if a step comes twice or too late: sums would count what is no run's."""
    for before, step in pairwise(steps):
        if not (is_number(before) and is_number(step) and before < step):
            raise UserError(
                f"{shown(path)} has step {step!r:.40} after step {before!r:.40}, as if two runs "
                "had written to it: keep the lines of one"
            )
