"""How far a prediction can be off: a range of seconds that eight of ten runs fall into.

    span = time_range(job, cluster)       # 0.88 to 1.12 of what is predicted
    choice.range_s                                # of a choice's step

From published rows that no constant was fitted to, by class: has the program rows of its own, and
have GPUs of the generation, and is it work that rows have? The rows of ranges.csv are written by
`python -m helpers.planner.audit --fit`.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from helpers.planner.hardware.catalog import generation
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job
from helpers.tables import read_table

RANGES = Path(__file__).with_name("ranges.csv")


@dataclass(frozen=True)
class Range:
    """A class of runs, see the top of ranges.csv.

    low, high: shares of the predicted seconds between which 80 % of the measured ones lie.
    rows: that this was counted from.
    """

    kind: str
    low: float
    high: float
    rows: int
    date: str
    source: str


def time_range(job: Job, cluster: Cluster) -> Range:
    """Of the seconds of a job on a cluster. Of work that no row has the range is the widest one:
    no row says how wide it is."""
    kind = kind_of(job, cluster)
    return ranges()[kind] if kind != "new work" else replace(ranges()["new GPU"], kind=kind)


def kind_of(job: Job, cluster: Cluster) -> str:
    """Which of its constants were fitted to rows; no row has experts or adapters."""
    if cluster.generation and not generation(cluster.generation).fitted:
        return "new GPU"
    if job.shape.idle or job.adapters is not None:
        return "new work"
    return "known" if job.program.measured else "new program"


@cache
def ranges(path: Path = RANGES) -> dict[str, Range]:
    """The rows of ranges.csv."""
    return {row.kind: row for row in read_table(path, Range)}


def rounded(number: float, span: Range) -> float:
    """To as many digits as the range leaves: money that is known to 10 % has two."""
    width = (span.high - span.low) / 2 * number
    if not width > 0:
        return number
    step = 10.0 ** int(f"{width:e}".split("e")[1])
    return round(number / step) * step
