"""How often a run fails, how often it should save, and how long it takes with both.

mtbf_s = mean_time_between_failures_s(gpus=1024)
every_s = best_interval_s(save_s=60, mtbf_s=mtbf_s)
expected_s(work_s=30 * DAY_S, every_s=every_s, save_s=60, restart_s=600, mtbf_s=mtbf_s)

A failure anywhere stops the job: what was computed since the last checkpoint is lost, and the job
restarts. Failures come at random, independent of each other, at a constant rate.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import HOUR_S
from helpers.planner.hardware.lookup import check_amounts, is_amount
from helpers.tables import read_table

FAILURES = Path(__file__).with_name("failures.csv")


@dataclass(frozen=True)
class Counted:
    """A run's failures, see the top of failures.csv."""

    name: str
    gpus: int
    days: float
    failures: int
    date: str
    source: str
    note: str = ""

    def __post_init__(self) -> None:
        for field in ("gpus", "days", "failures"):
            if not is_amount(getattr(self, field)):
                raise UserError(f"{field} must be a number above 0")

    @property
    def per_gpu_hour(self) -> float:
        return self.failures / (self.gpus * self.days * 24)


def counted(path: Path = FAILURES) -> tuple[Counted, ...]:
    """The rows of failures.csv."""
    return read_table(path, Counted)


def mean_time_between_failures_s(gpus: int, per_gpu_hour: float | None = None) -> float:
    """Seconds between two failures of a job.

    Args:
        per_gpu_hour: failures; by default those of the first row of failures.csv.

    Raises:
        UserError: a number is not above 0.
    """
    rate = counted()[0].per_gpu_hour if per_gpu_hour is None else per_gpu_hour
    check_amounts(gpus=gpus, per_gpu_hour=rate)
    return HOUR_S / (rate * gpus)


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """Seconds of work after which to save, so that a job ends soonest.

    Args:
        save_s: in which a checkpoint holds up the training.

    Raises:
        UserError: a number is not above 0.

    Source: Daly 2006, A higher order estimate of the optimum checkpoint interval, equation 37; its
    first term is Young's of 1974.
    """
    check_amounts(save_s=save_s, mtbf_s=mtbf_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    part = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - save_s


def expected_s(
    work_s: float, every_s: float, save_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Seconds in which a job is done, in the mean.

    Args:
        work_s: of the training alone.
        every_s: of work between two checkpoints.
        save_s: in which a checkpoint holds up the training.
        restart_s: after a failure; it can fail, too.

    Raises:
        UserError: a number is not above 0.

    Source: Daly 2006, as above, equation 20.
    """
    check_amounts(work_s=work_s, every_s=every_s, save_s=save_s, mtbf_s=mtbf_s)
    check_amounts(restart_s=restart_s)
    try:
        each_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((every_s + save_s) / mtbf_s)
    except OverflowError:
        return math.inf
    return each_s * work_s / every_s
