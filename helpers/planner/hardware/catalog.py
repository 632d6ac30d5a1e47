"""GPUs, machines, networks and prices as dated facts with their sources: the rows of CSV files.

    gpus()                              the rows of gpus.csv, beside this file
    gpus(Path("my_gpus.csv"))           of another file with the same columns

A wrong row is one line that names its file and its place in it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.engine.errors import UserError
from helpers.tables import read_table

HERE = Path(__file__).parent
GPUS, INSTANCES, PRICES = HERE / "gpus.csv", HERE / "instances.csv", HERE / "prices.csv"
GENERATIONS, NETWORKS = HERE / "generations.csv", HERE / "networks.csv"
PROTOCOLS, MESHES = HERE / "protocols.csv", HERE / "meshes.csv"
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
WIRES = ("nvlink", "pcie")
KINDS = ("on demand", "spot")
TERA = 1e12
GIGA = 1e9  # bandwidths are decimal
GIB = 2**30  # memory sizes are sold as GB and counted in GiB
MICRO = 1e-6
HOUR_S, DAY_S = 3600, 86_400
# of the nominal memory, where torch's own figure is not known: what the GPUs that are have at least
USABLE = 0.98


@dataclass(frozen=True)
class GPU:
    """One accelerator. The columns are explained at the top of gpus.csv."""

    name: str
    generation: str
    memory_gib: int
    memory_gb_per_s: float
    multiprocessors: int
    date: str
    source: str
    torch_name: str = ""
    also: str = ""
    usable_gib: float | None = None
    watts: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    matmul_tflops: float | None = None
    matmul_fp8_tflops: float | None = None
    attention_tflops: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        _check_above_zero(self, "memory_gib", "memory_gb_per_s", "multiprocessors")
        if not self.peak_flops:
            raise UserError(f"a GPU needs the peak of a dtype: one of {', '.join(DTYPES)}")
        if self.matmul_tflops is not None and self.bf16_tflops is None:
            raise UserError("matmul_tflops is of a bf16 product, but there is no bf16_tflops")

    @property
    def names(self) -> list[str]:
        """All that it goes by, but for torch's name."""
        return [self.name, *self.also.split()]

    @property
    def peak_flops(self) -> dict[str, float]:
        """Dense FLOP/s by dtype; one that the tensor cores lack is absent."""
        tera = {dtype: getattr(self, f"{dtype}_tflops") for dtype in DTYPES}
        return {dtype: value * TERA for dtype, value in tera.items() if value is not None}

    @property
    def matmul_flops(self) -> float | None:
        """The best bf16 matrix product measured, FLOP/s."""
        return None if self.matmul_tflops is None else self.matmul_tflops * TERA

    @property
    def memory_bytes(self) -> int:
        """What a program can have of it."""
        return int((self.usable_gib or USABLE * self.memory_gib) * GIB)

    @property
    def memory_bytes_per_s(self) -> float:
        """Bandwidth of the device's memory."""
        return self.memory_gb_per_s * GIGA


@dataclass(frozen=True)
class Instance:
    """A machine for rent, or to own. The columns are explained at the top of instances.csv."""

    name: str
    gpu: str
    gpus: int
    inter_gbit_per_s: float
    date: str
    source: str
    cloud: str = ""
    intra_gb_per_s: float | None = None
    wire: str = ""
    rails: int | None = None
    network: str = "infiniband"
    host_gib: float | None = None
    kw: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        _check_above_zero(self, "gpus", "inter_gbit_per_s")
        if (self.intra_gb_per_s is None) != (self.gpus == 1):
            raise UserError("intra_gb_per_s is between GPUs: several need it, one has none")
        if self.wire and self.wire not in WIRES:
            raise UserError(f"wire is {' or '.join(WIRES)}, not {self.wire!r}")


@dataclass(frozen=True)
class Generation:
    """What programs reach of a generation's GPUs, see the top of generations.csv."""

    name: str
    products: float
    attention: float
    fitted: int
    date: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Network:
    """What a kind of network between machines reaches, see the top of networks.csv."""

    name: str
    share: float
    extra_us: float
    date: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class Mesh:
    """What few neighbours have of a machine's wires, see the top of meshes.csv."""

    instance: str
    ranks: int
    gb_per_s: float
    date: str
    source: str

    def __post_init__(self) -> None:
        _check_above_zero(self, "ranks", "gb_per_s")


@dataclass(frozen=True)
class Protocol:
    """One of NCCL's ways to send, see the top of protocols.csv."""

    algorithm: str
    protocol: str
    start_us: float
    nvlink_us: float
    pcie_us: float
    network_us: float
    share: float
    date: str
    source: str


@dataclass(frozen=True)
class Price:
    """Dollars for one instance for one hour, and when and where that was recorded."""

    instance: str
    service: str
    usd_per_hour: float
    region: str
    date: str
    source: str
    kind: str = "on demand"

    def __post_init__(self) -> None:
        _check_above_zero(self, "usd_per_hour")
        if self.kind not in KINDS:
            raise UserError(f"kind is {' or '.join(KINDS)}, not {self.kind!r}")


def gpus(path: Path = GPUS) -> tuple[GPU, ...]:
    """The rows of gpus.csv, or of another file with its columns."""
    return read_table(path, GPU)


def instances(path: Path = INSTANCES) -> tuple[Instance, ...]:
    """The rows of instances.csv, or of another file with its columns."""
    return read_table(path, Instance)


def prices(path: Path = PRICES) -> tuple[Price, ...]:
    """The rows of prices.csv, or of another file with its columns."""
    return read_table(path, Price)


def generation(name: str, path: Path = GENERATIONS) -> Generation:
    """The row of generations.csv, or of another file with its columns."""
    return _named(name, read_table(path, Generation), "generation")


def network(name: str, path: Path = NETWORKS) -> Network:
    """The row of networks.csv, or of another file with its columns."""
    return _named(name, read_table(path, Network), "network")


def meshes(path: Path = MESHES) -> tuple[Mesh, ...]:
    """The rows of meshes.csv, or of another file with its columns."""
    return read_table(path, Mesh)


def protocols(path: Path = PROTOCOLS) -> tuple[Protocol, ...]:
    """The rows of protocols.csv, or of another file with its columns."""
    return read_table(path, Protocol)


def _named(name: str, rows: tuple[Any, ...], kind: str) -> Any:
    by_name = {row.name: row for row in rows}
    if name not in by_name:
        raise UserError(f"no {kind} {name!r}; there is {', '.join(by_name)}")
    return by_name[name]


def _check_above_zero(row: GPU | Instance | Mesh | Price, *names: str) -> None:
    for name in names:
        if not getattr(row, name) > 0:
            raise UserError(f"{name} must be above 0, not {getattr(row, name)!r}")
