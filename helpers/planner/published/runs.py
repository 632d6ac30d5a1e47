"""Training runs that others published with what they measured: the rows of tables/, and
those of runs.json, which also says what is not predicted and why.

    for run in runs(): print(run.title, run.measured_s)
    runs(Path("my_runs.json"))          of another file with the same fields, CSV or JSON

Nothing here was run by this project. A run more is a row more: its model is one of models.csv, its
machine one of hardware/instances.csv or of tables/machines.csv.
"""

import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.catalog import GIB, GIGA, MICRO, TERA, network
from helpers.planner.hardware.cluster import make_cluster
from helpers.planner.hardware.devices import Cluster
from helpers.planner.hardware.links import Link
from helpers.planner.hardware.lookup import check_amounts
from helpers.planner.model.block_tensors import program_for
from helpers.planner.model.training_job import Job, make_job
from helpers.planner.published.models import published_model
from helpers.planner.shape.shape import Shape
from helpers.tables import read_table

HERE = Path(__file__).parent
RUNS, TABLES = HERE / "runs.json", HERE / "tables"
MACHINES, FIGURE_1, SOURCES = (TABLES / f"{n}.csv" for n in ("machines", "figure_1", "sources"))
THROUGHPUT = tuple(
    TABLES / f"{name}.csv"
    for name in (
        "bigscience",
        "fully_sharded",
        "llm_foundry",
        "megatron",
        "nvidia_dgxc",
        "nvidia_nemo",
    )
)
PACES = ("step_s", "samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu")
PLAN_FIELDS = {field.name: field.type for field in fields(ParallelPlan)}
EQUAL_STAGES = re.compile(r"(\d+)x(\d+)")  # 20x4: four stages of 20 layers


@dataclass(frozen=True)
class Machine:
    """A machine like an instance but for some of its numbers, see the top of machines.csv."""

    name: str
    instance: str
    date: str
    source: str
    devices_per_node: int | None = None
    context_gib: float | None = None
    inter_gbit_per_s: float | None = None
    rails: int | None = None
    network: str = ""
    note: str = ""


@dataclass(frozen=True)
class Source:
    """A published table, see the top of tables/sources.csv."""

    name: str
    by: str
    title: str
    date: str
    source: str
    flops: str = ""
    memory: str = ""


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

    layers, hidden, heads: where they are other than the model's in models.csv.
    layout: fields of ParallelPlan as text, `tp=8 pp=4`; or plan, the same as an object.
    batch: samples of a step, over all ranks. program: as estimate's.
    step_s, samples_per_s, tokens_per_s_per_gpu, tflops_per_gpu: the pace, in the one of them that
        was published.
    memory_gib: measured.
    assumed, note: what the source does not state. measured, why_not: of a run that is not
        predicted.
    """

    title: str = ""
    model: str = ""
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    machine: str = ""
    layout: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    batch: int = 0
    seq_len: int = 0
    program: str = "engine"
    step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    memory_gib: float | None = None
    assumed: str = ""
    note: str = ""
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
        check_amounts(**{name: getattr(self, name) for name in given})
        if self.tflops_per_gpu is not None and self.source not in sources():
            raise UserError(f"{SOURCES.name} does not say how {self.source!r} counts FLOPs")
        cluster_of(self)  # so what is unknown is said when the row is read
        job_of(self)

    @property
    def name(self) -> str:
        """Its title, or what it is."""
        if self.title:
            return self.title
        size = f" {self.shape.layers} x {self.shape.hidden}" if self.sizes else ""
        return f"{self.model}{size}, {self.machine}, {self.layout}"

    @property
    def parallel_plan(self) -> ParallelPlan:
        return ParallelPlan(**(_plan_fields(self.layout) | _known(self.plan)))

    @property
    def shape(self) -> Shape:
        """Of its model, with learned positions for all that it reads."""
        model = published_model(self.model)
        positions = max(model.positions, self.seq_len) if model.positions else 0
        return replace(model, **self.sizes, positions=positions).shape

    @property
    def sizes(self) -> dict[str, int]:
        """Those that are other than the model's."""
        given = {name: getattr(self, name) for name in ("layers", "hidden", "heads")}
        return {name: size for name, size in given.items() if size is not None}

    @property
    def measured_s(self) -> float | None:
        """Seconds of a step, from the pace that was published; None where it is not predicted."""
        tokens, ranks = self.batch * self.seq_len, self.parallel_plan.world_size
        if self.samples_per_s is not None:
            return self.batch / self.samples_per_s
        if self.tokens_per_s_per_gpu is not None:
            return tokens / (self.tokens_per_s_per_gpu * ranks)
        if self.tflops_per_gpu is not None:
            flops = _step_flops(self.shape, tokens, self.seq_len, sources()[self.source].flops)
            return flops / (self.tflops_per_gpu * TERA * ranks)
        return self.step_s


def runs(path: Path = RUNS) -> tuple[Run, ...]:
    """The rows of runs.json, or of another file with its fields.

    Raises:
        UserError: a row is wrong, in one line that names the file and the row.
    """
    return read_table(path, Run)


def all_runs() -> tuple[Run, ...]:
    """Every row, of runs.json and of tables/, that the planner predicts."""
    rows = [run for path in (RUNS, *THROUGHPUT) for run in runs(path)]
    return tuple(run for run in rows if not run.why_not)


def sources(path: Path = SOURCES) -> dict[str, Source]:
    """The rows of tables/sources.csv by name."""
    return {row.name: row for row in read_table(path, Source)}


def figure_1(path: Path = FIGURE_1) -> tuple[Figure1, ...]:
    """The rows of figure_1.csv, or of another file with its columns."""
    return read_table(path, Figure1)


def job_of(run: Run) -> Job:
    """The job of a published run.

    Raises:
        UserError: its plan does not fit its model, or model or program are not known.
    """
    plan, shape = run.parallel_plan, run.shape
    cluster = cluster_of(run)
    way = program_for(run.program, shape, plan, cluster, run.seq_len)
    return make_job(shape, plan, run.batch, run.seq_len, way, device=cluster.device)


def cluster_of(run: Run) -> Cluster:
    """As many of the run's machines as its plan has ranks for.

    Raises:
        UserError: its machine is neither in machines.csv nor in instances.csv, or its ranks do
            not fill several of them.
    """
    by_name = {machine.name: machine for machine in read_table(MACHINES, Machine)}
    machine, ranks = by_name.get(run.machine), run.parallel_plan.world_size
    node = _node_of(machine) if machine else make_cluster(run.machine)
    devices = min(ranks, node.devices_per_node)
    if ranks % devices:
        raise UserError(f"{ranks} ranks do not fill machines of {devices} devices each")
    return replace(node, nodes=ranks // devices, devices_per_node=devices)


def _node_of(machine: Machine) -> Cluster:
    """One node of a machine of machines.csv."""
    node = replace(make_cluster(machine.instance), name=machine.name)
    if machine.devices_per_node is not None:
        node = replace(node, devices_per_node=machine.devices_per_node)
    if machine.context_gib is not None:
        node = replace(node, context_bytes=machine.context_gib * GIB)
    if machine.inter_gbit_per_s is not None:
        out = network(machine.network or "infiniband")
        each = machine.inter_gbit_per_s / 8 * GIGA / node.devices_per_node
        node = replace(node, inter=Link(each * out.share, out.extra_us * MICRO))
    return replace(node, rails=machine.rails) if machine.rails is not None else node


def _plan_fields(layout: str) -> dict[str, Any]:
    """Fields of a plan from text."""
    words = [word.partition("=") for word in layout.split()]
    names = [name for name, _, _ in words]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"the layout gives {twice[0]!r} more than once")
    return _known({name: _value(name, value) for name, _, value in words})


def _known(plan: dict[str, Any]) -> dict[str, Any]:
    unknown = [name for name in plan if name not in PLAN_FIELDS]
    if unknown:
        raise UserError(f"a plan has no field {unknown[0]!r}")
    return plan


def _value(name: str, text: str) -> Any:
    if name == "partition" and (equal := EQUAL_STAGES.fullmatch(text)):
        return ",".join([equal[1]] * int(equal[2]))
    of = PLAN_FIELDS.get(name)
    if of is bool:
        return {"true": True, "false": False}.get(text, text)
    return int(text) if of is int and text.isdecimal() else text


def _step_flops(shape: Shape, tokens: int, seq_len: int, counted: str) -> float:
    """FLOPs of a step as its source counts them: `recomputed`, with every block's forward twice
    (arXiv 2104.04473, equation 3), or the `model`'s alone."""
    times, head = (96, 16) if counted == "recomputed" else (72, 12)
    h, layers = shape.hidden, shape.layers
    return (
        times * tokens * layers * h**2 * (1 + seq_len / (6 * h) + shape.vocab / (head * layers * h))
    )
