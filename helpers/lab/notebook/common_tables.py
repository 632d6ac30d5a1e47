"""The tables that several notebooks show: what runs cost, how far apart two answers are, and what
was predicted beside what was measured."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.engine.errors import need
from helpers.lab.figures.tables import table_of

if TYPE_CHECKING:
    import pandas as pd

    from helpers.lab.runs.run import Run


def cost_table(runs: "Mapping[str, Run]", price_per_hour: float) -> "pd.DataFrame":
    """By run: dollars for a million tokens, of the training alone and of the whole bill; how many
    samples were trained, and the last loss."""
    rows = {}
    for name, run in runs.items():
        millions = run.cost(price_per_hour)["cost_per_million_tokens"]
        rows[name] = {
            "training alone": millions["train"],
            "whole bill": millions["total"],
            "samples": int(run.numbers("samples").sum()),
            "final loss": run.summary["final_loss"],
        }
    return table_of(rows, "run")


def parity_table(differences: "pd.DataFrame") -> "pd.DataFrame":
    """The largest difference of each kind of tensor: those of all layers under one name.

    Args:
        differences: by tensor name, a column for each precision (scripts/measure/parity.py).
    """
    kind = differences.index.str.replace(r"\.\d+\.", ".N.", regex=True)
    table = differences.groupby(kind, sort=False).max()
    table.insert(0, "compared", differences.groupby(kind, sort=False).size())
    return table.rename_axis("largest relative difference")


def prediction_table(rows: Mapping[str, Sequence[float]]) -> "pd.DataFrame":
    """What was predicted and what was measured, by name, and the second over the first."""
    pandas = need("pandas", "notebooks")
    columns = ["predicted", "measured"]
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("what")
    table["measured / predicted"] = table["measured"] / table["predicted"]
    return table
