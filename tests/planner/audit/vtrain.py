"""Runs of Megatron-DeepSpeed on A100 that vTrain published, where they stand beside the project.

    single = vtrain_runs("single")        # on one node of 2 to 8 GPUs; "multi": on several
    errors, groups = ...

They are no part of the project and no constant was fitted to their several nodes; on one node two
were, which only small kernels show: what the host needs to start an operation, and what a message
costs beside NCCL.

Source: Bang et al. 2024, vTrain (arXiv 2312.12391).
"""

import csv
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from helpers.engine.plan import ParallelPlan
from helpers.planner.audit.order import Timed
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.devices import Cluster
from helpers.planner.model.training_job import Job
from helpers.planner.published.models import PublishedModel
from helpers.planner.search.estimate import planned_job
from helpers.planner.time.step_time import step_time

FOLDER = Path(__file__).resolve().parents[4] / "shared/data/vtrain"
VOCABULARY = 50304  # not stated: GPT-2's, padded
NODE_GB_S = 100  # 800 Gb/s


@dataclass(frozen=True)
class VTrainRun:
    """One of its rows; the columns' own names in the source."""

    gpus: int
    batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    seq_len: int
    tp: int
    dp: int
    pp: int
    measured_s: float

    @property
    def plan(self) -> ParallelPlan:
        return ParallelPlan(
            tp=self.tp,
            pp=self.pp,
            dp_replicate=self.dp,
            precision="fp16",
            reduce_dtype="fp16",
            activation="full",
            microbatches=self.batch // self.dp // self.micro_batch,
        )

    @property
    def cluster(self) -> Cluster:
        nodes = max(1, self.gpus // 8)
        whole = make_cluster("dgx-a100", nodes, gpus=self.gpus // nodes, inter_gb_s=NODE_GB_S)
        return replace(whole, rails=4)

    @property
    def job(self) -> Job:
        shape = PublishedModel(
            "", "gpt2", self.hidden, self.layers, self.heads, VOCABULARY, "", "",
            positions=self.seq_len, tied=True,
        ).shape  # fmt: skip
        return planned_job(shape, self.plan, self.cluster, self.batch, self.seq_len, "megatron")

    @property
    def predicted_s(self) -> float:
        return step_time(self.job, self.cluster, "quick").total_s


@cache
def vtrain_runs(name: str) -> tuple[VTrainRun, ...]:
    """The rows of single.csv or multi.csv."""
    with open(FOLDER / f"{name}.csv", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row and row[0][:1].isdigit()]
    skipped = 1 if name == "multi" else 0  # its first column is the model's size
    return tuple(
        VTrainRun(*(int(float(cell)) for cell in row[skipped:-1]), float(row[-1]) / 1000)
        for row in rows
    )


def questions(runs: tuple[VTrainRun, ...]) -> list[list[Timed]]:
    """Layouts of the same model and batch on as many GPUs."""
    groups = defaultdict(list)
    for run in runs:
        key = (run.gpus, run.batch, run.hidden, run.heads, run.layers, run.seq_len)
        groups[key].append(Timed(run.measured_s, run.predicted_s))
    return [group for group in groups.values() if len(group) > 1]
