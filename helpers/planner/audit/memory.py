"""Published memory beside the planner's: a paper's formulas, and peaks that were measured."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from helpers.planner.hardware.catalog import GIB
from helpers.planner.memory.activations import activation_bytes
from helpers.planner.memory.peak import fullest
from helpers.planner.published.runs import (
    RUNS,
    Run,
    all_runs,
    cluster_of,
    figure_1,
    job_of,
    runs,
    sources,
)

KORTHIKANTI = "arXiv 2205.05198, table 5"
# what a source states, as of Memory
STATED = {"allocated": "allocated", "reserved": "reserved", "device": "total"}
PAPERS_BYTES = 18  # of a parameter's weight, gradient and states in its figure 1


def eight() -> list[Run]:
    """The runs of Korthikanti et al., of which figure 1 has the memory."""
    return [run for run in runs(RUNS) if run.source == KORTHIKANTI]


def first_rank_gib(name: str) -> tuple[float, float, float]:
    """What figure 1 shows of a model, by our formulas: its states at 18 bytes a parameter, and
    activations of both ways, in GiB, of the first pipeline rank."""
    run = next(run for run in eight() if run.title == f"{name}, selective")
    ways = (
        {"activation": "none", "sequence_parallel": False},
        {"activation": "selective", "sequence_parallel": True},
    )
    plain, saved = (job_of(replace(run, plan=run.plan | way)) for way in ways)
    states = PAPERS_BYTES * plain.parameters_of(0)
    return states / GIB, activation_bytes(plain, 0) / GIB, activation_bytes(saved, 0) / GIB


class Part(NamedTuple):
    """A row of the comparison with figure 1, in GiB."""

    model: str
    what: str
    published: float
    ours: float


def parts() -> Iterator[Part]:
    """All that figure 1 shows."""
    names = ("states", "activations, tp", "activations, tp, sequence, selective")
    for row in figure_1():
        published = (row.states_gib, row.activations_gib, row.saved_activations_gib)
        for name, theirs, ours in zip(names, published, first_rank_gib(row.model)):
            yield Part(row.model, name, theirs, ours)


def measured_peaks() -> Iterator[tuple[Run, float]]:
    """Runs whose peak was measured, and what is predicted of it, in GiB."""
    for run in all_runs():
        if run.memory_gib is not None:
            memory = fullest(job_of(run), context_bytes=cluster_of(run).context_bytes)
            yield run, getattr(memory, STATED[sources()[run.source].memory]) / GIB
