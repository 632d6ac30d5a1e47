"""A run's whole bill: its steps, its checkpoints, its failures and the hours before it starts.

    bill = whole_bill(found.best, tokens=300e9, save_s=60)
    bill.hours, bill.goodput, bill.usd, bill.kwh

Of a planned choice the seconds have a range, and so has all that follows from them.
"""

import math
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.planner.bill.failures import (
    best_interval_s,
    expected_s,
    mean_time_between_failures_s,
)
from helpers.planner.cost import money
from helpers.planner.hardware.catalog import HOUR_S
from helpers.planner.hardware.lookup import check_amounts, check_amounts_or_zero
from helpers.planner.search.planned import Choice, check_choice


@dataclass(frozen=True)
class Bill:
    """What a run takes, in the mean.

    hours: from the first machine held to the last, of which `training` are the steps alone,
        `saving` what checkpoints hold up, `failures` what is computed twice and restarted, and
        `idle` before the start.
    every_s: of work between two checkpoints.
    failed: how many times.
    goodput: the share of hours that are training.
    usd, kwh: for all hours; None where no price, or no power, is known.
    low, high: shares of hours, usd and kwh between which 8 of 10 measured ones would lie.
    """

    hours: float
    training: float
    saving: float
    failures: float
    idle: float
    every_s: float
    failed: float
    usd: float | None
    kwh: float | None
    low: float
    high: float

    @property
    def goodput(self) -> float:
        return self.training / self.hours


def whole_bill(
    choice: Choice,
    tokens: float,
    save_s: float,
    restart_s: float = 600.0,
    idle_s: float = 0.0,
    per_gpu_hour: float | None = None,
    usd_per_hour: float | None = None,
) -> Bill:
    """What a plan's run over `tokens` is billed for.

    Args:
        choice: of `estimate` or `search_plans`.
        save_s: in which a checkpoint holds up the training.
        restart_s: from a failure to the next step.
        idle_s: in which machines are held before the first step.
        per_gpu_hour: failures, with a spot machine's notices among them; by default failures.csv.
        usd_per_hour: of one node, as a spot price; by default the cluster's.

    Raises:
        UserError: it is no choice, a number is not above 0, or failures are so many that the run
            never ends.
    """
    check_choice(choice)
    check_amounts(tokens=tokens, save_s=save_s, restart_s=restart_s)
    check_amounts_or_zero(idle_s=idle_s)
    cluster = choice.cluster
    price = cluster.usd_per_hour if usd_per_hour is None else usd_per_hour
    mtbf_s = mean_time_between_failures_s(cluster.devices, per_gpu_hour)
    work_s = tokens / choice.tokens_per_s
    every_s = min(best_interval_s(save_s, mtbf_s), work_s)
    all_s = expected_s(work_s, every_s, save_s, restart_s, mtbf_s)
    if not math.isfinite(all_s):
        raise UserError(f"with a failure every {mtbf_s:.3g} s the run never ends")
    saving_s = work_s / every_s * save_s
    hours = (all_s + idle_s) / HOUR_S
    power = cluster.kw
    return Bill(
        hours=hours,
        training=work_s / HOUR_S,
        saving=saving_s / HOUR_S,
        failures=(all_s - work_s - saving_s) / HOUR_S,
        idle=idle_s / HOUR_S,
        every_s=every_s,
        failed=all_s / mtbf_s,
        usd=None if price is None else money(hours * HOUR_S, price, cluster.nodes),
        kwh=None if power is None else hours * power * cluster.nodes,
        low=choice.range.low,
        high=choice.range.high,
    )
