"""The numbers of the time model that were fitted to published runs, and fitting them.

    values = current()                     # those of generations.csv, programs.json, devices.py
    fitted(rows, values)                   # the values that fit some rows best
    job, cluster = with_values(run, values)
    left_out("bigscience")                 # the values without a source, of left_out.csv

Each is a share with a meaning and a prior, which rows have to argue against. All of them together
are fitted to all rows of published/, so none can be bent to a row; one that no row is left to say
anything about has its prior. Without priors some rows are explained as well by very different
values, as attention at half its rate and products a tenth faster, and rows of another source then
are not.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import generation
from helpers.planner.hardware.devices import DEVIATION, Cluster
from helpers.planner.model.block_tensors import Program, program
from helpers.planner.model.training_job import Job
from helpers.planner.published.runs import Run, all_runs, cluster_of, job_of
from helpers.planner.time.step_time import step_time
from helpers.tables import read_rows

LEFT_OUT = Path(__file__).with_name("left_out.csv")
HEAD = (
    "# Values of the fitted constants without the rows of one source; the last row is of all rows."
)
ROUNDS = 3  # of Gauss and Newton
STEP = 0.03  # a value's relative change for its slope
LEAST = 0.02  # a residual below which a row counts as if it had this one
NOISE = 0.05  # of a row's residual, beside which a departure from a prior is weighed


@dataclass(frozen=True)
class Constant:
    """One fitted number.

    of: `generation`, `program` or `cluster`; row: of its table, and `field` of that row; for a
        program, `also` are rows that have the same number.
    prior, width: its value without evidence, and by how much it may well be another.
    low, high: what it can mean.
    """

    of: str
    row: str
    field: str
    prior: float
    width: float
    low: float
    high: float
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.row} {self.field}"


PRODUCTS = (0.8, 0.2, 0.3, 1.0)  # of the best product of all that was measured
ATTENTION = (1.0, 0.1, 0.3, 1.0)  # of what its kernel's authors measured
PROGRAM = (1.0, 0.1, 0.8, 1.25)  # programs call the same library
# Triton's kernel of FlashAttention's first edition, beside the second's: arXiv 2307.08691, figure 4
FIRST_EDITION = (0.65, 0.1, 0.3, 1.0)
# cuDNN's kernel of late 2024 on Hopper and later, as fast as the third edition: arXiv 2407.08608,
# figures 5 and 6: 550 to 600 TFLOP/s forward and backward, where the second has 335
THIRD_EDITION = (1.65, 0.2, 1.0, 2.0)
HIDDEN = (0.9, 0.3, 0.0, 1.0)  # of messages that a program means to hide
TITAN = ("torchtitan-2024", "torchtitan-eager", "kempnerforge", "kempnerforge-eager")
CONSTANTS = (
    Constant("generation", "volta", "products", *PRODUCTS),
    Constant("generation", "ampere", "products", *PRODUCTS),
    Constant("generation", "hopper", "products", *PRODUCTS),
    Constant("generation", "blackwell", "products", *PRODUCTS),
    Constant("generation", "ampere", "attention", *ATTENTION),
    Constant("generation", "hopper", "attention", *ATTENTION),
    Constant("program", "torchtitan", "products_reached", *PROGRAM, TITAN),
    Constant("program", "llm-foundry", "products_reached", *PROGRAM),
    Constant("program", "llm-foundry", "attention_reached", *FIRST_EDITION),
    Constant("program", "torchtitan", "slows", 0.2, 0.2, 0.0, 1.0, (*TITAN, "llm-foundry")),
    Constant("program", "megatron-2025", "attention_reached", *THIRD_EDITION),
    Constant("program", "megatron-2024", "tensor", *HIDDEN, ("megatron-2025",)),
    Constant("program", "megatron-2021", "gathers", *HIDDEN),
    Constant("program", "megatron-2021", "one_card", 0.8, 0.3, 0.3, 1.0),
    Constant("cluster", "cluster", "deviation", 0.0, 0.02, 0.0, 0.05),
)
FITTED_ON = "2026-11-30"  # of the last fit
OF_HIDDEN = ("tensor", "gathers", "sums", "updates", "slows")
Values = dict[str, float]


def current() -> Values:
    """The values as they are."""
    return {constant.name: _current(constant) for constant in CONSTANTS}


def _current(constant: Constant) -> float:
    if constant.of == "generation":
        return getattr(generation(constant.row), constant.field)
    if constant.of == "cluster":
        return DEVIATION
    row = program(constant.row)
    return getattr(row.hidden if constant.field in OF_HIDDEN else row, constant.field)


def with_values(run: Run, values: Values) -> tuple[Job, Cluster]:
    """The job and the cluster of a run, with other values than the current ones."""
    job, cluster = job_of(run), cluster_of(run)
    for constant in CONSTANTS:
        value = values[constant.name]
        if constant.of == "generation" and constant.row == cluster.generation:
            cluster = _of_generation(cluster, constant, value)
        elif constant.of == "cluster":
            cluster = replace(cluster, deviation=value)
        elif job.program.name in (constant.row, *constant.also):
            job = replace(job, program=_of_program(job.program, constant.field, value))
    return job, cluster


def _of_generation(cluster: Cluster, constant: Constant, value: float) -> Cluster:
    factor = value / _current(constant)
    field = "attention_flops" if constant.field == "attention" else "matmul_flops"
    rates = {dtype: rate * factor for dtype, rate in getattr(cluster, field).items()}
    return replace(cluster, **{field: rates})


def _of_program(row: Program, field: str, value: float) -> Program:
    if field in OF_HIDDEN:
        return replace(row, hidden=replace(row.hidden, **{field: value}))
    return replace(row, **{field: value})


def predicted_s(run: Run, values: Values | None = None) -> float:
    """Seconds of a step."""
    job, cluster = (job_of(run), cluster_of(run)) if values is None else with_values(run, values)
    return step_time(job, cluster, "quick").total_s


def residuals(rows: Sequence[Run], values: Values) -> torch.Tensor:
    """The logarithm of predicted over measured, of each row."""
    return torch.tensor(
        [math.log(predicted_s(run, values) / run.measured_s) for run in rows], dtype=torch.float64
    )


def slopes(rows: Sequence[Run], values: Values, at: torch.Tensor) -> torch.Tensor:
    """How each row's residual changes with each value. [rows, values]"""
    columns = []
    for constant in CONSTANTS:
        change = STEP * max(abs(values[constant.name]), 0.1)
        if values[constant.name] + change > constant.high:
            change = -change
        moved = values | {constant.name: values[constant.name] + change}
        concerned = [i for i, run in enumerate(rows) if concerns(constant, run)]
        column = torch.zeros(len(rows), dtype=torch.float64)
        if concerned:
            there = residuals([rows[i] for i in concerned], moved)
            column[concerned] = (there - at[concerned]) / change
        columns.append(column)
    return torch.stack(columns, 1)


def concerns(constant: Constant, run: Run) -> bool:
    """Does a run's prediction depend on a constant?"""
    if constant.of == "generation":
        return cluster_of(run).generation == constant.row
    if constant.of == "program":
        return job_of(run).program.name in (constant.row, *constant.also)
    return cluster_of(run).nodes > 1


def fitted(rows: Sequence[Run], values: Values) -> Values:
    """The values with the least sum of absolute residuals, where the rows of a source together
    weigh as much as the root of their number, and of squared departures from the priors.

    Source: iteratively reweighted least squares; Huber 1981, Robust Statistics, section 7.8. The
    most likely values of residuals after Laplace and of priors after Gauss.
    """
    for _ in range(ROUNDS):
        at = residuals(rows, values)
        values = stepped(rows, values, at, slopes(rows, values, at))
    return values


def stepped(
    rows: Sequence[Run], values: Values, at: torch.Tensor, slope: torch.Tensor, turns: int = 20
) -> Values:
    """The values that fit best where residuals are as linear as they are here."""
    count = Counter(run.source for run in rows)
    weights = torch.tensor([count[run.source] ** -0.5 for run in rows], dtype=torch.float64)
    start = torch.tensor(list(values.values()), dtype=torch.float64)
    low = torch.tensor([constant.low for constant in CONSTANTS], dtype=torch.float64)
    high = torch.tensor([constant.high for constant in CONSTANTS], dtype=torch.float64)
    prior = torch.tensor([constant.prior for constant in CONSTANTS], dtype=torch.float64)
    width = torch.tensor([constant.width for constant in CONSTANTS], dtype=torch.float64)
    pull = NOISE / width**2
    change = torch.zeros_like(start)
    for _ in range(turns):
        now = at + slope @ change
        root = (weights / now.abs().clamp(min=LEAST)).sqrt()
        left = slope * root[:, None]
        towards = pull * (prior - start) - left.T @ (at * root)
        change = torch.linalg.solve(left.T @ left + torch.diag(pull), towards)
        change = (start + change).clamp(low, high) - start
    return dict(zip(values, (start + change).tolist()))


def of_program(run: Run) -> str:
    """What left_out.csv calls the rows of a run's program."""
    return f"program {run.program}"


def fitted_to() -> tuple[Run, ...]:
    """The rows that constants are fitted to."""
    return tuple(filter(is_fitted, all_runs()))


@cache
def fitted_names() -> tuple[str, ...]:
    """The sources and the programs of these rows, in their order."""
    names = (name for run in fitted_to() for name in (run.source, of_program(run)))
    return tuple(dict.fromkeys(names))


def is_fitted(run: Run) -> bool:
    """Are constants fitted to a row? Not in 8 bits, of which too much is assumed."""
    return run.parallel_plan.precision != "fp8"


@cache
def left_out(what: str) -> Values:
    """The values fitted to the rows of all sources, or programs, but this one: all values as they
    are, where no row of it was fitted."""
    if what in {run.source for run in all_runs()} - set(fitted_names()):
        what = "nothing"
    for _, row in read_rows(LEFT_OUT):
        if row["left_out"] == what:
            return {constant.name: float(row[constant.name]) for constant in CONSTANTS}
    raise UserError(f"{LEFT_OUT.name} has no values without {what!r}: fit them with --fit")


def fit_all() -> Iterator[str]:
    """Fit the constants to all rows, and to those of all sources, and of all programs, but one;
    write what they are without it, and say what they are with all.
    """
    rows, start = list(fitted_to()), current()
    whole = fitted(rows, start)
    found = {"nothing": whole}
    at = residuals(rows, whole)
    slope = slopes(rows, whole, at)
    for left in fitted_names():
        kept = [i for i, run in enumerate(rows) if left not in (run.source, of_program(run))]
        found[left] = stepped([rows[i] for i in kept], whole, at[kept], slope[kept])
    text = io.StringIO()
    table = csv.DictWriter(text, ["left_out", *whole, "date", "source"], lineterminator="\n")
    table.writeheader()
    for left, values in found.items():
        rounded = {name: round(value, 4) for name, value in values.items()}
        table.writerow({"left_out": left, **rounded, "date": FITTED_ON, "source": "this audit"})
    LEFT_OUT.write_text(f"{HEAD}\n{text.getvalue()}", encoding="utf-8")
    for name, value in whole.items():
        yield f"{name:40} {start[name]:.3f} now, {value:.3f} fits best"
