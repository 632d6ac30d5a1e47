"""What came out of a comparison: speed, bill, time to a loss, break-even, and a sentence.

A ratio is always how many times as fast as the first side, over runs of one seed, and always of a
named clock:

    training       steps alone; in the steady state, or up to the target loss
    with compile   all steps and the compile time
    billed         from the launch on, as a machine is paid
"""

from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.comparison.loss_curve import curve, seconds_by_part, steady_s, work_of
from helpers.lab.runs.run import Run
from helpers.planner.cost import money
from helpers.planner.published.claims import Claim, claim
from helpers.planner.published.work import AMOUNTS, Difference

if TYPE_CHECKING:
    import pandas as pd

CLOCKS = ("training", "with compile", "billed")


@dataclass(frozen=True)
class Comparison:
    """Runs that may be compared, side by side; made by `compare_runs`.

    Attributes:
        sides: runs by name, the i-th of each with one seed. The first side is the baseline.
        at: samples, steps or loss.
        differs: by name, what is not equal to the baseline: what is compared, and what was allowed.
        window: samples whose mean is called the loss.
        target_loss: that both sides reach.
        price_per_hour: of all machines of a run together.
    """

    sides: dict[str, tuple[Run, ...]]
    at: str
    differs: dict[str, list[Difference]]
    window: int
    target_loss: float
    price_per_hour: float | None = None

    @property
    def baseline(self) -> str:
        return next(iter(self.sides))

    @cached_property
    def work(self) -> "pd.DataFrame":
        """What a run of each side did."""
        pandas = need("pandas", "notebooks")
        rows = {}
        for name, runs in self.sides.items():
            work = work_of(runs[0])
            counts = {key: getattr(work, key) for key in ("samples", "steps", "batch", "tokens")}
            words = ", ".join(map(str, self.differs.get(name, []))) or "–"
            rows[name] = {"runs": len(runs), **counts, f"not as {self.baseline}": words}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("side")

    @cached_property
    def speed(self) -> "pd.DataFrame":
        """Samples a second, and how many times as fast as the baseline: the median over the
        repeats, and the lowest and highest of them."""
        pandas = need("pandas", "notebooks")
        rows = {}
        for name, runs in self.sides.items():
            rows[name] = {
                "samples/s": median(1 / steady_s(run, "samples") for run in runs),
                "with compile": median(
                    work_of(run).samples / _clocks_s(run)["with compile"] for run in runs
                ),
                "loss": self.final_loss(name),
            }
            for clock in CLOCKS:
                ratios = self.ratios(name, clock)
                rows[name][f"times as fast, {clock}"] = median(ratios)
                rows[name][f"{clock}: lowest"] = min(ratios)
                rows[name][f"{clock}: highest"] = max(ratios)
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("side")

    @cached_property
    def bill(self) -> "pd.DataFrame":
        """Seconds that a run is billed for, by what they went into, and their cost; medians."""
        pandas = need("pandas", "notebooks")
        rows = {}
        for name, runs in self.sides.items():
            parts = [seconds_by_part(run) for run in runs]
            row = {part: median(one[part] for one in parts) for part in parts[0]}
            row["billed"] = median(sum(one.values()) for one in parts)
            if self.price_per_hour:
                row["cost"] = money(row["billed"], self.price_per_hour)
            rows[name] = row
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("side")

    @cached_property
    def to_target(self) -> "pd.DataFrame":
        """What it takes to reach `target_loss`: samples, steps and seconds; medians."""
        pandas = need("pandas", "notebooks")
        rows = {}
        for name, runs in self.sides.items():
            reached = [self.reached(run) for run in runs]
            rows[name] = {key: median(one[key] for one in reached) for key in reached[0]}
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("side")

    @cached_property
    def break_even(self) -> "pd.DataFrame":
        """After how many samples the extra compile time is paid back; nothing where it never is."""
        pandas = need("pandas", "notebooks")
        first_s, first_compile_s = self._steady(self.baseline)
        rows = {}
        for name in list(self.sides)[1:]:
            sample_s, compile_s = self._steady(name)
            extra_s, gain_s = max(0.0, compile_s - first_compile_s), first_s - sample_s
            samples = extra_s / gain_s if gain_s > 0 else float("nan")
            rows[name] = {
                "extra compile s": extra_s,
                "gained s a sample": gain_s,
                "samples": samples,
                "seconds": samples * first_s,
            }
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("side")

    def final_loss(self, name: str) -> float:
        """The mean loss of the last `window` samples, the median over the repeats."""
        return median(curve(run, self.window)["loss"].iloc[-1] for run in self.sides[name])

    def ratios(self, name: str, clock: str) -> list[float]:
        """How many times as fast as the baseline, by repeat, to the same samples, steps or loss.

        Args:
            clock: training, with compile or billed; see this file's head.
        """
        if clock not in CLOCKS:
            raise UserError(f"clock is one of {', '.join(CLOCKS)}, not {clock!r}")
        return [
            self._mark_s(first, clock) / self._mark_s(run, clock)
            for first, run in zip(self.sides[self.baseline], self.sides[name])
        ]

    def claim(self, name: str, meaning: str, clock: str) -> Claim:
        """So many percent faster than the baseline, in the meaning and on the clock that you name;
        see helpers.planner.published.claims."""
        return claim(median(self.ratios(name, clock)), meaning, clock)

    def reached(self, run: Run) -> dict[str, float]:
        """Where a run's loss first is `target_loss` or less."""
        along = curve(run, self.window)
        row = along[along["loss"] <= self.target_loss].iloc[0]
        parts = seconds_by_part(run)
        return {
            "samples": float(row["samples"]),
            "steps": float(row.name + 1),
            "training s": row["seconds"],
            "with compile s": row["seconds"] + parts["compile"],
            "billed s": row["seconds"] + parts["compile"] + parts["before"],
        }

    @property
    def sentence(self) -> str:
        """What was held equal, and what came out, with its spread."""
        parts = [self._said(name) for name in list(self.sides)[1:]]
        return f"{self._held()}, {'; '.join(parts)}."

    def _held(self) -> str:
        if self.at == "loss":
            return f"To a loss of {self.target_loss:.4g}"
        unit = {"samples": "sample", "steps": "optimizer step"}[self.at]
        if any(d.name == self.at for found in self.differs.values() for d in found):
            return f"For one {unit}"
        return f"At {self.work[self.at].iloc[0]:,} {unit}s each"

    def _said(self, name: str) -> str:
        row, runs = self.speed.loc[name], len(self.sides[name])
        low, high = row["training: lowest"], row["training: highest"]
        spread = (
            f"{low:.2f} to {high:.2f} over {runs} repeats" if runs > 1 else "one run, no spread"
        )
        words = (
            f"{name} is {row['times as fast, training']:.2f} times as fast as {self.baseline} "
            f"({spread}), {row['times as fast, with compile']:.2f} with the compile time and "
            f"{row['times as fast, billed']:.2f} as billed"
        )
        if self.at != "loss":
            apart = row["loss"] - self.speed["loss"].iloc[0]
            words += f", at a loss {abs(apart):.2g} {'higher' if apart > 0 else 'lower'}"
        also = [d for d in self.differs[name] if not (self.at == "loss" and d.name in AMOUNTS)]
        return words + (f"; they differ in {', '.join(map(str, also))}" if also else "")

    def _steady(self, name: str) -> tuple[float, float]:
        """Seconds a sample, and of compiling."""
        runs = self.sides[name]
        compile_s = median(seconds_by_part(run)["compile"] for run in runs)
        return median(steady_s(run, "samples") for run in runs), compile_s

    def _mark_s(self, run: Run, clock: str) -> float:
        """Seconds to the target loss; or, at samples or steps, for one of them."""
        if self.at == "loss":
            return self.reached(run)[f"{clock} s"]
        if clock == "training":
            return steady_s(run, self.at)
        return _clocks_s(run)[clock] / getattr(work_of(run), self.at)


def _clocks_s(run: Run) -> dict[str, float]:
    """Seconds of a whole run by clock."""
    parts = seconds_by_part(run)
    return {"with compile": parts["compile"] + parts["train"], "billed": sum(parts.values())}
