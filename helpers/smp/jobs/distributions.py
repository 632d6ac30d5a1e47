"""An estimator's distribution, hardware and precision as a plan, and what stands beside it."""

from dataclasses import dataclass, field
from typing import Any

from helpers.engine.errors import UserError
from helpers.engine.plan import ParallelPlan
from helpers.planner.hardware.lookup import find_gpu, find_instance
from helpers.smp.configuration import SmpConfig, read_smp_config
from helpers.smp.jobs.estimators import Estimator, part
from helpers.smp.reading.values import Unknown, is_known, unknown_in

WITH_GPUS = ("ml.p", "ml.g", "p", "g")  # how names of machines begin that have some
WITHOUT_GPUS = ("local", "ml.m", "ml.c", "ml.t", "ml.r")


@dataclass
class Machines:
    """Where a job runs. `instance` is None where it has no GPUs, or is not known; `gpus` says
    whether it has, then."""

    instance: str | None = None
    nodes: int | None = None
    nproc: int | None = None
    asked: list[str] = field(default_factory=list)
    gpus: bool = False

    @property
    def has_gpus(self) -> bool:
        return self.instance is not None or self.gpus

    def __str__(self) -> str:
        kind = self.instance or f"a machine {'with' if self.gpus else 'without'} GPUs"
        return f"{self.nodes} x {kind}, {self.nproc} rank{'' if self.nproc == 1 else 's'} each"

    @property
    def ranks(self) -> int | None:
        return self.nodes * self.nproc if self.nodes and self.nproc else None


def check_products(plan: ParallelPlan, where: Machines) -> None:
    """Raise a UserError if the machines' GPUs do not multiply 8 bits, as the plan wants."""
    if plan.precision != "fp8" or where.instance is None:
        return
    gpu = find_gpu(find_instance(where.instance).gpu)
    if "fp8" not in gpu.peak_flops:
        raise UserError(
            f"fp8 needs GPUs that multiply 8 bits, and {where.instance}'s {gpu.name} do not: "
            "switch it off for bf16, or take p5.48xlarge"
        )


def machines(job: Estimator, answers: dict[str, Any]) -> Machines:
    """The job's nodes and ranks on each."""
    found = Machines()
    count = job.get("instance_count", 1)
    found.nodes = _whole(count, "instance_count", answers, found.asked)
    kind, mpi = job.get("instance_type"), part(job.get("distribution"), "mpi")
    per_host = part(mpi, "processes_per_host")
    name = kind if isinstance(kind, str) else answers.get("instance_type")
    if isinstance(name, str) and not name.startswith(WITHOUT_GPUS):
        try:
            instance = find_instance(name)
            found.instance, found.nproc = instance.name, instance.gpus
        except UserError:
            found.nproc, found.gpus = None, name.startswith(WITH_GPUS)
    elif isinstance(name, str):
        found.nproc = 1
    if per_host is not None:
        found.nproc = _whole(per_host, "processes_per_host", answers, found.asked)
    elif "processes_per_host" in answers:
        found.nproc = _whole(None, "processes_per_host", answers, found.asked)
    if found.nproc is None and not found.asked:
        found.asked.append("processes_per_host" if isinstance(name, str) else "instance_type")
    if found.nproc and not isinstance(job.get("distribution"), (dict, Unknown)):
        found.nproc = 1  # nothing is distributed: the service starts one process
    return found


def _whole(value: Any, name: str, answers: dict[str, Any], asked: list[str]) -> int | None:
    value = answers.get(name, value)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    missing = unknown_in(value)
    asked.append(str(missing) if missing else name)
    return None


@dataclass(frozen=True)
class Layout:
    """A plan, or why there is none; `config` where a configuration of the library says it."""

    plan: ParallelPlan | None = None
    config: SmpConfig | None = None
    refused: str = ""
    asked: tuple[str, ...] = ()
    words: str = ""


def layout(distribution: Any, ranks: int | None) -> Layout:
    """The plan that a distribution asks for.

    Args:
        ranks: of the whole job, None where they are not known.
    """
    if isinstance(distribution, Unknown):
        return Layout(asked=(str(distribution),))
    if ranks is None:
        return Layout()
    model_parallel = part(distribution, "smdistributed", "modelparallel")
    if part(model_parallel, "enabled") not in (None, False):
        parameters = part(model_parallel, "parameters")
        return configured({} if parameters is None else parameters, ranks)
    kinds = {
        "data parallel, in the library's own words": ("smdistributed", "dataparallel"),
        "torchrun": ("torch_distributed",),
        "data parallel": ("pytorchddp",),
        "data parallel over XLA": ("pytorchxla",),
        "MPI": ("mpi",),
    }
    for words, path in kinds.items():
        if part(distribution, *path, "enabled") not in (None, False):
            return Layout(ParallelPlan(dp_replicate=ranks), words=words)
    return Layout(ParallelPlan(dp_replicate=ranks), words="one process a node")


def configured(parameters: Any, ranks: int) -> Layout:
    """The plan of a configuration of the library, some of whose values may not be known."""
    if not isinstance(parameters, dict):
        return Layout(asked=(str(unknown_in(parameters) or "parameters"),))
    missing = tuple(
        dict.fromkeys(str(unknown_in(v)) for v in parameters.values() if not is_known(v))
    )
    if missing:
        return Layout(asked=missing)
    try:
        config = read_smp_config(dict(parameters), ranks)
    except UserError as error:
        return Layout(refused=str(error))
    return Layout(config.plan, config)
