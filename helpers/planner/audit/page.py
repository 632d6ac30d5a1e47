"""docs/planner.md: the planner against what others measured, as a page."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from helpers.planner.audit.constants import CONSTANTS, current, left_out
from helpers.planner.audit.memory import measured_peaks, parts
from helpers.planner.audit.order import by_question, order, regret
from helpers.planner.audit.rows import Errors, Row, error, grouped, percent, rows, title
from helpers.planner.audit.spread import covered
from helpers.planner.model.block_tensors import program_names
from helpers.planner.published.runs import RUNS, runs
from helpers.planner.search.ranges import ranges

PAGE = Path(__file__).resolve().parents[3] / "docs/planner.md"


def markdown() -> str:
    """The page."""
    return "\n".join([*_top(), *_sums(), *_order(), *_constants(), *_memory(), *_each(), *_not()])


def _top() -> list[str]:
    return [
        "# The planner against published runs",
        "",
        "Written by `python -m helpers.planner.audit`; a test writes it anew and compares. Nothing "
        "here was run by this project: measured numbers are their sources' own. Errors are "
        "predicted over measured, less one.",
        "",
        "Each row is predicted twice. *Fitted*: with the constants as they are, to which the row "
        "itself belongs. *Unseen*: with the same constants fitted anew to all rows but those of "
        "its source. Whoever asks about a run of their own should expect the second. To rows in 8 "
        "bits nothing is fitted: both of their columns are unseen.",
        "",
        f"`estimate(..., program=...)` takes {_names()}. `megatron` is the edition whose tables "
        "were published for the GPUs' generation: of 2021 on Volta and Ampere, of 2022 there "
        "where the plan splits sequences or recomputes in part, and of 2025 on Hopper and later, "
        "whose attention is faster than in the edition of 2024.",
        "",
    ]


def _names() -> str:
    return ", ".join(f"`{name}`" for name in program_names())


def _sums() -> list[str]:
    head = ("rows of", "rows", "fitted, mean", "bias", "unseen, mean", "bias", "worst")
    by_source = grouped(rows(), lambda row: title(row.run.source))
    by_gpu = grouped(rows(), lambda row: f"*{row.generation}*")
    body = [_sum(name, found) for groups in (by_source, by_gpu) for name, found in groups.items()]
    known = ranges()["known"]
    return [
        "## Errors by source and by generation of GPUs",
        "",
        *_table(head, [*body, _sum("**all**", rows())]),
        "",
        "What the rows say about a prediction's range, which `estimate` and `explain` give with "
        "each figure:",
        "",
        *_table(
            ("of", "80 % of the measured seconds are between", "and"),
            [(one.kind, f"{one.low:.2f}", f"{one.high:.2f}") for one in ranges().values()],
        ),
        "",
        f"of what is predicted. The range of the others' rows covers {100 * covered(rows()):.0f} "
        f"% of a source's own ({known.rows} rows). A new program is one without rows of its own "
        "here, as the engine itself: no published run used it. A new GPU is of a generation "
        "without rows. Experts and adapters are in no row: they are `new work`, and have the range "
        "of a new GPU, the widest.",
        "",
    ]


def _sum(name: str, found: Sequence[Row]) -> tuple[str, ...]:
    fitted, unseen = (
        Errors.of([getattr(row, which) for row in found]) for which in ("fitted", "unseen")
    )
    cells = (fitted.size, fitted.bias, unseen.size, unseen.bias, unseen.worst)
    size, bias, unseen_size, unseen_bias, worst = map(percent, cells)
    return name, str(len(found)), size[1:], bias, unseen_size[1:], unseen_bias, worst


def _order() -> list[str]:
    body = []
    by_source = grouped(rows(), lambda row: title(row.run.source))
    for name, found in [*by_source.items(), ("**all**", rows())]:
        groups = by_question(found)
        pairs = order(groups)
        if pairs.pairs:
            cost = regret(groups)
            shares = (f"{100 * pairs.share:.0f} %", f"{cost.mean:.2f}", f"{cost.worst:.2f}")
            body.append((name, str(pairs.pairs), *shares))
    return [
        "## Order: which of two layouts is the faster",
        "",
        "Pairs of layouts of the same model on the same machines, in one table of one date, whose "
        "measured seconds differ by a tenth and more; predicted unseen. The regret is the measured "
        "time of the layout that is predicted to be the fastest, over that of the fastest.",
        "",
        *_table(("pairs of", "pairs", "in the right order", "regret, mean", "worst"), body),
        "",
    ]


def _constants() -> list[str]:
    values = current()
    without = [left_out(source) for source in {row.run.source for row in rows()}]
    body = [
        (
            constant.name,
            f"{values[constant.name]:.3g}",
            f"{min(one[constant.name] for one in without):.2f} to "
            f"{max(one[constant.name] for one in without):.2f}",
        )
        for constant in CONSTANTS
    ]
    return [
        "## What was fitted",
        "",
        "All of it, to all rows together. The last column is what a constant is without one source "
        "after the other.",
        "",
        *_table(("constant", "value", "with one source left out"), body),
        "",
    ]


def _memory() -> list[str]:
    body = [
        (
            one.model,
            one.what,
            f"{one.published:.2f}",
            f"{one.ours:.2f}",
            percent(error(one.ours, one.published)),
        )
        for one in parts()
    ]
    peaks = list(measured_peaks())
    errors = [error(ours, run.memory_gib) for run, ours in peaks]
    by_source = grouped_peaks(peaks)
    return [
        "## Memory",
        "",
        "Figure 1 of arXiv 2205.05198, GiB of the first pipeline rank. The paper's numbers are its "
        "own formulas evaluated, not measurements: activations are the same formulas here, through "
        "the schedule's own count of micro-batches in flight. Its states leave out embeddings and "
        "biases, which the first stage does hold, so ours are larger.",
        "",
        *_table(("model", "what", "published", "ours", "error"), body),
        "",
        "Measured peaks, as each source states them: of the device, reserved by torch's allocator, "
        "or allocated. What a program holds was read in its code "
        "(`helpers/planner/model/programs.json`), and nothing of it is fitted. What is too small "
        "here is most of all what no code says: the buffers of NCCL's groups and the allocator's "
        "fragments.",
        "",
        *_table(("rows of", "rows", "mean", "bias"), by_source),
        "",
        f"All: mean of absolute errors {percent(Errors.of(errors).size)[1:]}.",
        "",
    ]


def grouped_peaks(peaks: Iterable[tuple]) -> Iterator[tuple[str, ...]]:
    """Errors of measured peaks by source."""
    for name, found in grouped(peaks, lambda peak: title(peak[0].source)).items():
        errors = Errors.of([error(ours, run.memory_gib) for run, ours in found])
        yield name, str(errors.count), percent(errors.size)[1:], percent(errors.bias)


def _each() -> list[str]:
    head = ("run", "batch x tokens", "measured s", "ours s", "fitted", "unseen")
    lines = ["## Every row", ""]
    for name, found in grouped(rows(), lambda row: title(row.run.source)).items():
        body = [
            (
                row.run.name,
                f"{row.run.batch} x {row.run.seq_len}",
                f"{row.run.measured_s:.2f}",
                f"{row.fitted_s:.2f}",
                percent(row.fitted),
                percent(row.unseen),
            )
            for row in found
        ]
        lines += [f"### {name}", "", *_table(head, body), ""]
    return lines


def _not() -> list[str]:
    body = [(run.title, run.source, run.measured, run.why_not) for run in runs(RUNS) if run.why_not]
    return [
        "## Published, not predicted",
        "",
        *_table(("run", "source", "measured", "why not"), body),
        "",
    ]


def _table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *body)]
    return [line.replace("|  |", "| |") for line in lines]
