"""What came out of a comparison: speed, bill, time to a loss, break-even, and a sentence.

Every table is a median over the repeats of a side, of the columns of `Comparison.rows`. A ratio is
always how many times as fast as the first side, over runs of one seed, and always of a named clock:

    training       steps alone; in the steady state, or up to the target loss
    with compile   all steps and the compile time
    billed         from the launch on, as a machine is paid
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from helpers.engine.errors import UserError, need
from helpers.lab.comparison.measures import curve, measures, work_of
from helpers.lab.figures.tables import table_of
from helpers.lab.runs.run import Run
from helpers.planner.cost import money
from helpers.planner.published.equal_work import AMOUNTS, Difference

if TYPE_CHECKING:
    import pandas as pd

CLOCKS = ("training", "with compile", "billed")
STEADY = {"samples": "s a sample", "steps": "s a step"}


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
    def rows(self) -> "pd.DataFrame":
        """A row per run, by side and repeat, with the columns of `measures`."""
        pandas = need("pandas", "notebooks")
        rows = [measures(run, self.window, self.target_loss) for run in self._runs.values()]
        index = pandas.MultiIndex.from_tuples(self._runs, names=["side", "repeat"])
        return pandas.DataFrame(rows, index=index)

    @cached_property
    def curves(self) -> "pd.DataFrame":
        """A row per step, by side and repeat, with the columns of `curve`."""
        pandas = need("pandas", "notebooks")
        curves = {key: curve(run, self.window) for key, run in self._runs.items()}
        return pandas.concat(curves, names=["side", "repeat", "step"])

    @cached_property
    def work(self) -> "pd.DataFrame":
        """What a run of each side did."""
        rows = {}
        for name, runs in self.sides.items():
            work = work_of(runs[0])
            counts = {key: getattr(work, key) for key in ("samples", "steps", "batch", "tokens")}
            words = ", ".join(map(str, self.differs.get(name, []))) or "–"
            rows[name] = {"runs": len(runs), **counts, f"not as {self.baseline}": words}
        return table_of(rows, "side")

    @cached_property
    def speed(self) -> "pd.DataFrame":
        """Samples a second, and how many times as fast as the baseline: the median over the
        repeats, and the lowest and highest of them."""
        pandas = need("pandas", "notebooks")
        rows = self.rows
        rates = {
            "samples/s": 1 / rows["s a sample"],
            "with compile": rows["samples"] / (rows["compile"] + rows["train"]),
            "loss": rows["loss"],
        }
        table = _medians(pandas.DataFrame(rates))
        for clock in CLOCKS:
            ratios = self._ratios[clock].groupby("side", sort=False)
            table[f"times as fast, {clock}"] = ratios.median()
            table[f"{clock}: lowest"] = ratios.min()
            table[f"{clock}: highest"] = ratios.max()
        return table

    @cached_property
    def bill(self) -> "pd.DataFrame":
        """Seconds that a run is billed for, by what they went into, and their cost; medians."""
        table = _medians(self.rows[["before", "compile", "train", "rest", "billed"]])
        if self.price_per_hour:
            table["cost"] = [money(billed_s, self.price_per_hour) for billed_s in table["billed"]]
        return table

    @cached_property
    def to_target(self) -> "pd.DataFrame":
        """What it takes to reach `target_loss`: samples, steps and seconds; medians."""
        counts = self.rows[["samples to loss", "steps to loss"]]
        counts = counts.set_axis(["samples", "steps"], axis=1)
        return _medians(counts.join(self._to_loss_s.add_suffix(" s")))

    @cached_property
    def break_even(self) -> "pd.DataFrame":
        """After how many samples the extra compile time is paid back; nothing where it never is."""
        pandas = need("pandas", "notebooks")
        medians = _medians(self.rows)
        first, others = medians.iloc[0], medians.iloc[1:]
        extra_s = (others["compile"] - first["compile"]).clip(lower=0.0)
        gain_s = first["s a sample"] - others["s a sample"]
        samples = (extra_s / gain_s).where(gain_s > 0)
        return pandas.DataFrame(
            {
                "extra compile s": extra_s,
                "gained s a sample": gain_s,
                "samples": samples,
                "seconds": samples * first["s a sample"],
            }
        )

    def ratios(self, name: str, clock: str) -> list[float]:
        """How many times as fast as the baseline, by repeat, to the same samples, steps or loss.

        Args:
            clock: training, with compile or billed; see this file's head.
        """
        if clock not in CLOCKS:
            raise UserError(f"clock is one of {', '.join(CLOCKS)}, not {clock!r}")
        return self._ratios.loc[name][clock].tolist()

    @property
    def sentence(self) -> str:
        """What was held equal, and what came out, with its spread."""
        parts = [self._said(name) for name in list(self.sides)[1:]]
        return f"{self._held_equal()}, {'; '.join(parts)}."

    def _held_equal(self) -> str:
        if self.at == "loss":
            return f"To a loss of {self.target_loss:.4g}"
        unit = {"samples": "sample", "steps": "optimizer step"}[self.at]
        if any(d.name == self.at for differences in self.differs.values() for d in differences):
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

    @property
    def _runs(self) -> dict[tuple[str, int], Run]:
        return {(name, i): run for name, runs in self.sides.items() for i, run in enumerate(runs)}

    @cached_property
    def _ratios(self) -> "pd.DataFrame":
        """A row per run: how many times as fast as the baseline's of the same repeat, by clock."""
        marks_s = self._to_loss_s if self.at == "loss" else self._for_one_s
        first_s = marks_s.loc[self.baseline]
        return first_s.reindex(marks_s.index, level="repeat") / marks_s

    @property
    def _to_loss_s(self) -> "pd.DataFrame":
        """A row per run: seconds to the target loss, by clock."""
        training = self.rows["s to loss"]
        compiled = training + self.rows["compile"]
        return _by_clock(training, compiled, compiled + self.rows["before"])

    @property
    def _for_one_s(self) -> "pd.DataFrame":
        """A row per run: seconds for one sample or step, by clock."""
        rows, amount = self.rows, self.rows[self.at]
        compiled = rows["compile"] + rows["train"]
        return _by_clock(rows[STEADY[self.at]], compiled / amount, rows["billed"] / amount)


def _by_clock(*seconds: "pd.Series") -> "pd.DataFrame":
    return need("pandas", "notebooks").concat(seconds, axis=1, keys=CLOCKS)


def _medians(rows: "pd.DataFrame") -> "pd.DataFrame":
    return rows.groupby("side", sort=False).median()
