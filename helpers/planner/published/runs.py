"""Training runs that others published with what they measured: the rows of runs.json.

    for run in runs(): print(run.title, run.measured_s)
    runs(Path("my_runs.json"))          of another file with the same fields

Nothing here was run by this project. A run more is a row more: its model is one of models.csv, its
machine one of hardware/instances.csv or of machines.csv.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.catalog import GIB, GIGA
from helpers.planner.hardware.cluster import REACHED, Cluster, make_cluster
from helpers.planner.model.block_tensors import program
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.published.models import published_shape
from helpers.tables import read_table

HERE = Path(__file__).parent
RUNS, MACHINES, FIGURE_1 = HERE / "runs.json", HERE / "machines.csv", HERE / "figure_1.csv"
PACES = ("step_s", "samples_per_s", "tokens_per_s_per_gpu")
PLAN_FIELDS = tuple(field.name for field in fields(ParallelPlan))


@dataclass(frozen=True)
class Machine:
    """A machine like an instance but for some of its numbers, see the top of machines.csv."""

    name: str
    instance: str
    date: str
    source: str
    devices_per_node: int | None = None
    memory_gib: int | None = None
    memory_gb_per_s: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Figure1:
    """A model's memory in figure 1 of arXiv 2205.05198, see the top of figure_1.csv."""

    model: str
    states_gib: float
    activations_gib: float
    saved_activations_gib: float
    date: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Published:
    """What everything published has."""

    title: str
    date: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Run(Published):
    """One published run, predicted by the planner or not.

    plan: fields of ParallelPlan. batch: samples of a step, over all ranks.
    program: of programs.json; the engine's own where not given.
    step_s, samples_per_s, tokens_per_s_per_gpu: the pace, in the one of them that was published.
    memory_gib: measured. calculon_s: what Calculon predicts for a step of the same run.
    assumed: what the source does not state. measured, why_not: of a run that is not predicted.
    """

    model: str = ""
    machine: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    batch: int = 0
    seq_len: int = 0
    program: str = ""
    step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    memory_gib: float | None = None
    calculon_s: float | None = None
    assumed: str = ""
    measured: str = ""
    why_not: str = ""

    def __post_init__(self) -> None:
        if self.why_not:
            if not self.measured:
                raise UserError("a run that is not predicted needs what was measured, in words")
            return
        given = [name for name in PACES if getattr(self, name) is not None]
        if len(given) != 1:
            raise UserError(f"a run needs one of {', '.join(PACES)}, or why_not")
        unknown = [name for name in self.plan if name not in PLAN_FIELDS]
        if unknown:
            raise UserError(f"a plan has no field {unknown[0]!r}")
        cluster_of(self)  # so what is unknown is said when the row is read
        job_of(self)

    @property
    def parallel_plan(self) -> ParallelPlan:
        return ParallelPlan(**self.plan)

    @property
    def measured_s(self) -> float | None:
        """Seconds of a step, from the pace that was published; None where it is not predicted."""
        if self.samples_per_s is not None:
            return self.batch / self.samples_per_s
        if self.tokens_per_s_per_gpu is not None:
            tokens_per_s = self.tokens_per_s_per_gpu * self.parallel_plan.world_size
            return self.batch * self.seq_len / tokens_per_s
        return self.step_s


def runs(path: Path = RUNS) -> tuple[Run, ...]:
    """The rows of runs.json, or of another file with its fields.

    Raises:
        UserError: a row is wrong, in one line that names the file and the row.
    """
    return read_table(path, Run)


def figure_1(path: Path = FIGURE_1) -> tuple[Figure1, ...]:
    """The rows of figure_1.csv, or of another file with its columns."""
    return read_table(path, Figure1)


def job_of(run: Run) -> Job:
    """The job of a published run.

    Raises:
        UserError: its plan does not fit its model, or model or program are not known.
    """
    way = program(run.program) if run.program else None
    return make_job(published_shape(run.model), run.parallel_plan, run.batch, run.seq_len, way)


def cluster_of(run: Run, path: Path = MACHINES) -> Cluster:
    """As many of the run's machines as its plan has ranks for.

    Raises:
        UserError: its machine is neither in machines.csv nor in instances.csv.
    """
    by_name = {machine.name: machine for machine in read_table(path, Machine)}
    machine, ranks = by_name.get(run.machine), run.parallel_plan.world_size
    node = _node_of(machine) if machine else make_cluster(run.machine)
    devices = min(ranks, node.devices_per_node)
    return replace(node, nodes=ranks // devices, devices_per_node=devices)


def _node_of(machine: Machine) -> Cluster:
    """One node of a machine of machines.csv."""
    node = replace(make_cluster(machine.instance), name=machine.name)
    if machine.devices_per_node is not None:
        node = replace(node, devices_per_node=machine.devices_per_node)
    if machine.memory_gib is not None:
        node = replace(node, memory_bytes=machine.memory_gib * GIB)
    if machine.memory_gb_per_s is not None:
        bytes_per_s = machine.memory_gb_per_s * GIGA * REACHED["memory"]
        node = replace(node, memory_bytes_per_s=bytes_per_s)
    return node
