"""The planner against what others measured, as a page: docs/planner.md.

    python -m helpers.planner.audit              # writes the page anew

Every run has the same constants, those of cluster.py. One of them was fitted, to the first eight
runs together; `left_out_errors` fits it to seven and predicts the eighth.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean

from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.cluster import REACHED
from helpers.planner.memory.components import activation_bytes, states_bytes
from helpers.planner.memory.peak import fullest
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.published.audit_runs import FIGURE_1, KORTHIKANTI, RUNS, Run
from helpers.planner.time.step_time import step_time

PAGE = Path(__file__).resolve().parents[2] / "docs/planner.md"
GIB = 2**30
SHARES = [0.80 + 0.01 * i for i in range(21)]  # tried for REACHED["matmul"]


def job_of(run: Run) -> Job:
    """The job of a published run."""
    return make_job(run.shape, ParallelPlan(**run.plan), run.batch, run.seq_len, run.program)


def predicted_s(run: Run, share: float | None = None, exact: bool = True) -> float:
    """Seconds of a step.

    Args:
        share: in place of REACHED["matmul"].
    """
    cluster = run.cluster
    if share is not None:
        factor = share / REACHED["matmul"]
        rates = {dtype: rate * factor for dtype, rate in cluster.matmul_flops.items()}
        cluster = replace(cluster, matmul_flops=rates)
    return step_time(job_of(run), cluster, exact).total_s


def eight() -> list[Run]:
    """The runs that the time model is held against."""
    return [run for run in RUNS if run.source == KORTHIKANTI]


def error(predicted: float, measured: float) -> float:
    """How much more than measured was predicted, as a share."""
    return predicted / measured - 1


def left_out_errors() -> list[float]:
    """For each of the eight runs, the error with the constant fitted to the other seven: the share
    with the smallest mean error among SHARES."""
    runs = eight()
    errors = {
        share: [error(predicted_s(run, share, exact=False), run.step_s) for run in runs]
        for share in SHARES
    }
    found = []
    for index in range(len(runs)):
        best = min(
            SHARES, key=lambda s: mean(abs(e) for i, e in enumerate(errors[s]) if i != index)
        )
        found.append(errors[best][index])
    return found


def figure_1(name: str) -> tuple[float, float, float]:
    """Our states, and activations of both ways, in GiB, of the first pipeline rank."""
    run = next(run for run in eight() if run.name == f"{name}, selective")
    both = [
        make_job(
            run.shape,
            ParallelPlan(**run.plan | {"activation": way, "sequence_parallel": way != "none"}),
            run.batch,
            run.seq_len,
            run.program,
        )
        for way in ("none", "selective")
    ]
    states = sum(states_bytes(both[0], 0))
    return states / GIB, *(activation_bytes(job, 0) / GIB for job in both)


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
    rows, ours, theirs = [], [], []
    left_out = left_out_errors()
    for run, alone in zip(eight(), left_out):
        seconds = predicted_s(run)
        ours.append(error(seconds, run.step_s))
        theirs.append(error(run.theirs_s, run.step_s))
        measured, mine, calculon = (f"{s:.2f}" for s in (run.step_s, seconds, run.theirs_s))
        off, off_alone, off_theirs = map(_percent, (ours[-1], alone, theirs[-1]))
        rows.append((run.name, measured, mine, off, off_alone, calculon, off_theirs))
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
        f"Mean of absolute errors {_mean(ours)}, worst {_worst(ours)}; left out {_mean(left_out)} "
        f"and {_worst(left_out)}; Calculon {_mean(theirs)} and {_worst(theirs)}.",
        "",
    ]


def _of_figure_1() -> list[str]:
    rows, errors = [], []
    for name, published in FIGURE_1.items():
        for what, theirs, ours in zip(
            ("states", "activations, tp", "activations, tp, sequence, selective"),
            published,
            figure_1(name),
        ):
            off = error(ours, theirs)
            errors += [off] if what != "states" else []
            rows.append((name, what, f"{theirs:.2f}", f"{ours:.2f}", _percent(off)))
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
    for run in RUNS:
        if run.why_not or run.source == KORTHIKANTI:
            continue
        seconds = predicted_s(run)
        errors.append(error(seconds, run.step_s))
        gib = "" if run.memory_gib is None else f"{run.memory_gib:.1f}"
        ours_gib = f"{fullest(job_of(run)).total / GIB:.1f}"
        measured, mine = f"{run.step_s:.2f}", f"{seconds:.2f}"
        off = _percent(errors[-1])
        rows.append((run.name, run.source, measured, mine, off, gib, ours_gib, run.said))
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
        "",
        *_table(head, rows),
        "",
        f"Mean of absolute errors {_mean(errors)}, worst {_worst(errors)}; mean error "
        f"{_percent(mean(errors))}.",
        "",
    ]


def _not_predicted() -> list[str]:
    rows = [(run.name, run.source, run.measured, run.why_not) for run in RUNS if run.why_not]
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
