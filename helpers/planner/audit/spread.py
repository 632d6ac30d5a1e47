"""The errors of rows that were not fitted, as ranges by class: what search/ranges.csv says.

write()                     # writes the file anew
covered(rows())             # the share of rows within the range of the other sources' rows
"""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from helpers.planner.audit.constants import (
    CONSTANTS,
    FITTED_ON,
    current,
    is_fitted,
    left_out,
    of_program,
    predicted_s,
)
from helpers.planner.audit.rows import Row, rows
from helpers.planner.search.ranges import RANGES

HEAD = """\
# Measured over predicted seconds, between which 80 % of published rows lie that were not fitted.
# kind: known, of a program and a generation of GPUs with rows of their own, predicted without those
# of their source; new program, without all of their program; new GPU, wider by what generations
# differ."""
OUTSIDE = 0.10  # the share of rows below a range, and above it


class Ratio(NamedTuple):
    """Measured over predicted seconds of a row, and its source."""

    value: float
    source: str


def ends(ratios: Sequence[Ratio]) -> tuple[float, float]:
    """Between which 80 % lie, where the rows of a source together weigh as much as the root of
    their number: they are off in the same way."""
    count = Counter(ratio.source for ratio in ratios)
    ordered = sorted(ratios)
    weights = [count[ratio.source] ** -0.5 for ratio in ordered]
    below, whole, found = 0.0, sum(weights), []
    for ratio, weight in zip(ordered, weights):
        found.append((below + weight / 2, ratio.value))
        below += weight
    low = next(value for at, value in found if at >= OUTSIDE * whole)
    high = next(value for at, value in reversed(found) if at <= (1 - OUTSIDE) * whole)
    return low, high


def unseen_ratios(found: Sequence[Row]) -> dict[str, list[Ratio]]:
    """By class, of rows without their source, and without their program."""
    by_class: dict[str, list[Ratio]] = defaultdict(list)
    for row in found:
        run = row.run
        alone_s = predicted_s(run, left_out(of_program(run)))
        by_class["known"].append(Ratio(run.measured_s / row.unseen_s, run.source))
        by_class["new program"].append(Ratio(run.measured_s / alone_s, run.source))
    return by_class


def between_generations() -> tuple[float, float]:
    """Seconds of products over those with the prior, of the generations: the least and the most."""
    values = current()
    ratios = [
        one.prior / values[one.name]
        for one in CONSTANTS
        if one.of == "generation" and one.field == "products"
    ]
    return min(ratios), max(ratios)


def write() -> None:
    """Write ranges.csv anew."""
    by_class = unseen_ratios([row for row in rows() if is_fitted(row.run)])
    faster, slower = between_generations()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("kind", "low", "high", "rows", "date", "source"))
    for kind, ratios in sorted(by_class.items()):
        low, high = ends(ratios)
        about = (len(ratios), FITTED_ON, "this audit")
        table.writerow((kind, f"{low:.2f}", f"{high:.2f}", *about))
        if kind == "known":
            wider = (f"{low * faster:.2f}", f"{high * slower:.2f}")
            table.writerow(("new GPU", *wider, *about))
    RANGES.write_text(f"{HEAD}\n{text.getvalue()}", encoding="utf-8")


def covered(found: Sequence[Row]) -> float:
    """The share of rows whose measured seconds lie in the range that the other sources' rows of
    their class give."""
    inside = 0
    for source in {row.run.source for row in found}:
        others = unseen_ratios([row for row in found if row.run.source != source])
        for row in found:
            if row.run.source == source:
                low, high = ends(others["known"])
                inside += low <= row.run.measured_s / row.unseen_s <= high
    return inside / len(found)
