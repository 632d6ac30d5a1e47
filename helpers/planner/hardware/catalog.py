"""GPUs, instances and prices as dated facts with their sources: the rows of three CSV files.

    gpus()                              the rows of gpus.csv, beside this file
    gpus(Path("my_gpus.csv"))           of another file with the same columns

A wrong row is one line that names its file and its place in it.
"""

from dataclasses import dataclass
from pathlib import Path

from helpers.engine.errors import UserError
from helpers.tables import read_table

HERE = Path(__file__).parent
GPUS, INSTANCES, PRICES = HERE / "gpus.csv", HERE / "instances.csv", HERE / "prices.csv"
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
TERA = 1e12
GIGA = 1e9  # bandwidths are decimal
GIB = 2**30  # memory sizes are sold as GB and counted in GiB


@dataclass(frozen=True)
class GPU:
    """One accelerator. The columns are explained at the top of gpus.csv."""

    name: str
    torch_name: str
    memory_gib: int
    memory_gb_per_s: float
    multiprocessors: int
    date: str
    source: str
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    matmul_tflops: float | None = None
    attention_tflops: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        _check_above_zero(self, "memory_gib", "memory_gb_per_s", "multiprocessors")
        if not self.peak_flops:
            raise UserError(f"a GPU needs the peak of a dtype: one of {', '.join(DTYPES)}")
        if self.matmul_tflops is not None and self.bf16_tflops is None:
            raise UserError("matmul_tflops is of a bf16 product, but there is no bf16_tflops")

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
    def attention_flops(self) -> float | None:
        """Measured of attention in one kernel, forward and backward, FLOP/s."""
        return None if self.attention_tflops is None else self.attention_tflops * TERA

    @property
    def memory_bytes(self) -> int:
        """Nominal size."""
        return self.memory_gib * GIB

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
    intra_gb_per_s: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        _check_above_zero(self, "gpus", "inter_gbit_per_s")
        if (self.intra_gb_per_s is None) != (self.gpus == 1):
            raise UserError("intra_gb_per_s is between GPUs: several need it, one has none")

    @property
    def intra_node_bytes_per_s(self) -> float | None:
        """Between GPUs of the machine, one direction, per GPU; None for one GPU."""
        return None if self.intra_gb_per_s is None else self.intra_gb_per_s * GIGA

    @property
    def inter_node_bits_per_s(self) -> float:
        """Network of the whole machine, one direction."""
        return self.inter_gbit_per_s * GIGA


@dataclass(frozen=True)
class Price:
    """On-demand dollars for one instance for one hour, and when and where that was recorded."""

    instance: str
    service: str
    usd_per_hour: float
    region: str
    date: str
    source: str

    def __post_init__(self) -> None:
        _check_above_zero(self, "usd_per_hour")


def gpus(path: Path = GPUS) -> tuple[GPU, ...]:
    """The rows of gpus.csv, or of another file with its columns."""
    return read_table(path, GPU)


def instances(path: Path = INSTANCES) -> tuple[Instance, ...]:
    """The rows of instances.csv, or of another file with its columns."""
    return read_table(path, Instance)


def prices(path: Path = PRICES) -> tuple[Price, ...]:
    """The rows of prices.csv, or of another file with its columns."""
    return read_table(path, Price)


def _check_above_zero(row: GPU | Instance | Price, *names: str) -> None:
    for name in names:
        if not getattr(row, name) > 0:
            raise UserError(f"{name} must be above 0, not {getattr(row, name)!r}")
