"""The planner against what others measured, as a page: docs/planner.md.

    python -m helpers.planner.audit              # writes the page anew

Every run has the same constants, those of cluster.py. One of them was fitted, to the first eight
runs together; `left_out_errors` fits it to seven and predicts the eighth.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from helpers.planner.hardware.cluster import REACHED
from helpers.planner.memory.components import activation_bytes, rank_states
from helpers.planner.memory.peak import fullest
from helpers.planner.published.runs import Run, cluster_of, figure_1, job_of, runs
from helpers.planner.time.step_time import step_time

PAGE = Path(__file__).resolve().parents[2] / "docs/planner.md"
GIB = 2**30
KORTHIKANTI = "arXiv 2205.05198, table 5"  # the runs that the time model is held against
SHARES = [0.80 + 0.01 * i for i in range(21)]  # tried for REACHED["matmul"]


def predicted_s(run: Run, share: float | None = None, exact: bool = True) -> float:
    """Seconds of a step.

    Args:
        share: in place of REACHED["matmul"].
    """
    cluster = cluster_of(run)
    if share is not None:
        factor = share / REACHED["matmul"]
        rates = {dtype: rate * factor for dtype, rate in cluster.matmul_flops.items()}
        cluster = replace(cluster, matmul_flops=rates)
    return step_time(job_of(run), cluster, exact).total_s


def eight() -> list[Run]:
    """The runs that the time model is held against."""
    return [run for run in runs() if run.source == KORTHIKANTI]


def error(predicted: float, measured: float) -> float:
    """How much more than measured was predicted, as a share."""
    return predicted / measured - 1


def left_out_errors() -> list[float]:
    """For each of the eight runs, the error with the constant fitted to the other seven: the share
    with the smallest mean error among SHARES."""
    errors = {
        share: [error(predicted_s(run, share, exact=False), run.measured_s) for run in eight()]
        for share in SHARES
    }

    def mean_error_of_others(share: float, left_out: int) -> float:
        others = errors[share][:left_out] + errors[share][left_out + 1 :]
        return mean(map(abs, others))

    alone = []
    for index in range(len(eight())):
        fitted = min(SHARES, key=lambda share: mean_error_of_others(share, index))
        alone.append(errors[fitted][index])
    return alone


def first_rank_gib(name: str) -> tuple[float, float, float]:
    """What figure 1 shows of a model, by our formulas: its states, and activations of both ways, in
    GiB, of the first pipeline rank."""
    run = next(run for run in eight() if run.title == f"{name}, selective")
    ways = (
        {"activation": "none", "sequence_parallel": False},
        {"activation": "selective", "sequence_parallel": True},
    )
    plain, saved = (job_of(replace(run, plan=run.plan | way)) for way in ways)
    states = rank_states(plain, 0).total
    return states / GIB, activation_bytes(plain, 0) / GIB, activation_bytes(saved, 0) / GIB


def markdown() -> str:
    """The page."""
    return "\n".join([*_top(), *_of_eight(), *_of_figure_1(), *_of_others(), *_not_predicted()])


def _top() -> list[str]:
    return [
        "# The planner against published runs",
        "",
        "Written by `python -m helpers.planner.audit`; a test writes it anew and compares. Nothing "
        "here was run by",
        "this project: measured numbers are their sources' own. Errors are predicted over "
        "measured, less one.",
        "",
    ]


def _of_eight() -> list[str]:
    rows, errors, calculons = [], [], []
    left_out = left_out_errors()
    for run, alone in zip(eight(), left_out):
        predicted = predicted_s(run)
        errors.append(error(predicted, run.measured_s))
        calculons.append(error(run.calculon_s, run.measured_s))
        seconds = (f"{s:.2f}" for s in (run.measured_s, predicted, run.calculon_s))
        measured, ours, calculon = seconds
        off, off_alone, off_calculon = map(_percent, (errors[-1], alone, calculons[-1]))
        rows.append((run.title, measured, ours, off, off_alone, calculon, off_calculon))
    head = ("run", "measured s", "ours s", "error", "left out", "Calculon s", "its error")
    return [
        "## Step time: Megatron-LM on A100, 8 to 512 GPUs",
        "",
        f"{KORTHIKANTI}; Calculon as re-run from calculon-ai/calculon. One constant for all rows "
        "was fitted to them,",
        "the share of the best measured matrix product that training reaches; `left out` is the "
        "error with that",
        "constant fitted to the other seven rows.",
        "",
        *_table(head, rows),
        "",
        f"Mean of absolute errors {_mean(errors)}, worst {_worst(errors)}; left out "
        f"{_mean(left_out)} and {_worst(left_out)}; Calculon {_mean(calculons)} and "
        f"{_worst(calculons)}.",
        "",
    ]


def _of_figure_1() -> list[str]:
    rows, errors = [], []
    parts = ("states", "activations, tp", "activations, tp, sequence, selective")
    for row in figure_1():
        published = (row.states_gib, row.activations_gib, row.saved_activations_gib)
        for part, theirs, ours in zip(parts, published, first_rank_gib(row.model)):
            off = error(ours, theirs)
            errors += [off] if part != "states" else []
            rows.append((row.model, part, f"{theirs:.2f}", f"{ours:.2f}", _percent(off)))
    return [
        "## Memory: figure 1 of the same paper",
        "",
        "GiB of the first pipeline rank. The paper's numbers are its own formulas evaluated, not "
        "measurements: activations",
        "are the same formulas here, through the schedule's own count of micro-batches in flight. "
        "Its states leave out",
        "embeddings and biases, which the first stage does hold, so ours are larger.",
        "",
        *_table(("model", "what", "published", "ours", "error"), rows),
        "",
        f"Activations: mean of absolute errors {_mean(errors)}, worst {_worst(errors)}.",
        "",
    ]


def _of_others() -> list[str]:
    rows, errors = [], []
    for run in runs():
        if run.why_not or run.source == KORTHIKANTI:
            continue
        predicted = predicted_s(run)
        errors.append(error(predicted, run.measured_s))
        gib = "" if run.memory_gib is None else f"{run.memory_gib:.1f}"
        ours_gib = f"{fullest(job_of(run)).total / GIB:.1f}"
        measured, ours = f"{run.measured_s:.2f}", f"{predicted:.2f}"
        off = _percent(errors[-1])
        rows.append((run.title, run.source, measured, ours, off, gib, ours_gib, run.assumed))
    head = ("run", "source", "measured s", "ours s", "error", "GiB", "ours GiB", "assumed")
    return [
        "## Step time: other programs, nothing fitted",
        "",
        "What these programs do beside products is known only roughly, and their memory is not the "
        "engine's: KempnerForge",
        "keeps states in bf16 and whole gradients between micro-batches. Most run slower than "
        "predicted: a prediction is what",
        "well-overlapped code reaches on a GPU that holds its clock. Ratios between layouts hold "
        "better than seconds.",
        "torchtitan's runs with CP had products in float8 and are predicted in bf16, which is "
        "slower. Their attention was in",
        "bf16 too, and reached less than the planner expects: from CP 1 to 8 the pace falls more "
        "than predicted.",
        "",
        *_table(head, rows),
        "",
        f"Mean of absolute errors {_mean(errors)}, worst {_worst(errors)}; mean error "
        f"{_percent(mean(errors))}.",
        "",
    ]


def _not_predicted() -> list[str]:
    rows = [(run.title, run.source, run.measured, run.why_not) for run in runs() if run.why_not]
    return [
        "## Published, not predicted",
        "",
        *_table(("run", "source", "measured", "why not"), rows),
        "",
    ]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
    return [line.replace("|  |", "| |") for line in lines]


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _mean(errors: list[float]) -> str:
    return f"{100 * mean(map(abs, errors)):.1f} %"


def _worst(errors: list[float]) -> str:
    return f"{100 * max(map(abs, errors)):.1f} %"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(markdown(), encoding="utf-8")
