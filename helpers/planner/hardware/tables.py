"""GPUs, instances and prices, as dated facts with their sources.

Peaks are dense: the doubled figures that data sheets print for 2:4 sparsity never apply to training
here. A number that could not be confirmed in a primary source says so in its `note`.
"""

from dataclasses import dataclass, field

TERA = 1e12
GB = 1e9  # bandwidths are decimal
GIB = 2**30  # memory sizes are sold as GB and counted in GiB

# Sources named in the tables below.
MLE = "github.com/stas00/ml-engineering"
MLE_PEAKS = f"{MLE} compute/accelerator/README.md: dense TFLOPS, memory"
MLE_MAMF = f"{MLE} compute/accelerator/README.md: maximum achievable matmul FLOPS"
MLE_LINKS = f"{MLE} network/README.md: NVLink and PCIe, one direction"
EC2_GUIDE = "EC2 user guide, accelerated computing instances, March 2023"
EC2_PAGE = "EC2 instance type page"
# A100: between the 50 and 73 % of the peak that it states; H100: the 335 TFLOP/s of section 4.1
FLASH = "attention: arXiv 2307.08691 (FlashAttention-2)"


@dataclass(frozen=True)
class GPU:
    """One accelerator.

    peak_flops: dense FLOP/s by dtype (fp32 without tensor cores; tf32, bf16, fp16, fp8 with them).
        A dtype that the tensor cores lack is absent.
    matmul_flops: the best bf16 matrix multiplication measured, FLOP/s, or None.
    memory_bytes: nominal size; torch reports a few per cent less.
    memory_bytes_per_s: bandwidth of the device's memory.
    device_names: what `torch.cuda.get_device_name()` returns, without the maker's prefix.
    multiprocessors: over which a matrix product is cut into tiles.
    attention_flops: measured of attention in one kernel, forward and backward, or None.
    """

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    memory_bytes: int
    memory_bytes_per_s: float
    device_names: tuple[str, ...]
    source: str
    multiprocessors: int
    matmul_flops: float | None = None
    attention_flops: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Price:
    """On-demand dollars for one instance for one hour, and when and where that was recorded."""

    usd_per_hour: float
    service: str
    date: str
    region: str
    source: str


@dataclass(frozen=True)
class Instance:
    """A machine for rent.

    intra_node_bytes_per_s: between GPUs of the machine, one direction, per GPU; None for one GPU.
    inter_node_bits_per_s: network of the whole machine, one direction.
    """

    name: str
    gpu: str
    gpus: int
    intra_node_bytes_per_s: float | None
    inter_node_bits_per_s: float
    prices: tuple[Price, ...]
    source: str
    note: str = ""


def _flops(**tera: float) -> dict[str, float]:
    return {dtype: value * TERA for dtype, value in tera.items()}


GPUS = (
    GPU(
        name="V100-16",
        peak_flops=_flops(fp32=15.7, fp16=125),
        memory_bytes=16 * GIB,
        memory_bytes_per_s=900 * GB,
        device_names=("V100-SXM2-16GB",),
        multiprocessors=80,
        source="NVIDIA V100 data sheet (SXM2)",
        note="no bf16 and no tf32",
    ),
    GPU(
        name="V100-32",
        peak_flops=_flops(fp32=15.7, fp16=125),
        memory_bytes=32 * GIB,
        memory_bytes_per_s=900 * GB,
        device_names=("V100-SXM2-32GB",),
        multiprocessors=80,
        source="NVIDIA V100 data sheet (SXM2)",
        note="no bf16 and no tf32",
    ),
    GPU(
        name="A100-40",
        peak_flops=_flops(fp32=19.5, tf32=156, bf16=312, fp16=312),
        matmul_flops=271.2 * TERA,
        memory_bytes=40 * GIB,
        memory_bytes_per_s=1555 * GB,
        device_names=("A100-SXM4-40GB",),
        multiprocessors=108,
        attention_flops=0.6 * 312 * TERA,
        source=f"{MLE_PEAKS}; bandwidth: NVIDIA A100 data sheet; matmul: {MLE_MAMF}; {FLASH}",
    ),
    GPU(
        name="A100-80",
        peak_flops=_flops(fp32=19.5, tf32=156, bf16=312, fp16=312),
        matmul_flops=271.2 * TERA,
        memory_bytes=80 * GIB,
        memory_bytes_per_s=2039 * GB,
        device_names=("A100-SXM4-80GB",),
        multiprocessors=108,
        attention_flops=0.6 * 312 * TERA,
        source=f"{MLE_PEAKS}; bandwidth: NVIDIA A100 data sheet; matmul: {MLE_MAMF}; {FLASH}",
    ),
    GPU(
        name="H100",
        peak_flops=_flops(fp32=67, tf32=494.5, bf16=989, fp16=989, fp8=1979),
        matmul_flops=794.5 * TERA,
        memory_bytes=80 * GIB,
        memory_bytes_per_s=3350 * GB,
        device_names=("H100 80GB HBM3",),
        multiprocessors=132,
        attention_flops=335 * TERA,
        source=f"{MLE_PEAKS}; matmul: {MLE_MAMF}; {FLASH}",
        note="SXM; the often quoted 1979 for bf16 is with sparsity",
    ),
    GPU(
        name="H100-PCIe",
        peak_flops=_flops(fp32=51, tf32=378, bf16=756, fp16=756, fp8=1513),
        memory_bytes=80 * GIB,
        memory_bytes_per_s=2000 * GB,
        device_names=("H100 PCIe",),
        multiprocessors=114,
        source=MLE_PEAKS,
    ),
    GPU(
        name="H200",
        peak_flops=_flops(fp32=67, tf32=494.5, bf16=989, fp16=989, fp8=1979),
        matmul_flops=794.5 * TERA,
        memory_bytes=141 * GIB,
        memory_bytes_per_s=4800 * GB,
        device_names=("H200",),
        multiprocessors=132,
        attention_flops=335 * TERA,
        source=f"{MLE_PEAKS}; matmul: {MLE_MAMF}; {FLASH}",
    ),
    GPU(
        name="B200",
        peak_flops=_flops(tf32=1125, bf16=2250, fp16=2250, fp8=4500),
        matmul_flops=1745 * TERA,
        memory_bytes=180 * GIB,
        memory_bytes_per_s=8000 * GB,
        device_names=("B200",),
        multiprocessors=148,
        source=f"{MLE_PEAKS}; matmul: {MLE_MAMF}",
        note="fp32 rate and the usable 180 of 192 GB not confirmed; fp32 is left out",
    ),
    GPU(
        name="T4",
        peak_flops=_flops(fp32=8.1, fp16=65),
        memory_bytes=16 * GIB,
        memory_bytes_per_s=320 * GB,
        device_names=("T4",),
        multiprocessors=40,
        source="NVIDIA T4 data sheet",
        note="no bf16 and no tf32; about 15 GiB usable with error correction on",
    ),
    GPU(
        name="A10G",
        peak_flops=_flops(fp32=35, tf32=35, bf16=70, fp16=70),
        memory_bytes=24 * GIB,
        memory_bytes_per_s=600 * GB,
        device_names=("A10G",),
        multiprocessors=80,
        source="NVIDIA A10G data sheet, as quoted by third parties",
        note="peaks not confirmed in a primary source; the A10, another chip, has 125 in bf16",
    ),
)

_LCI_2023 = "github.com/LeanerCloud/ec2-instances-info, generated_instances_data.txt"
_PRICING_2025 = "AWS price list"
_SAGEMAKER_FSDP = "philschmid.de/sagemaker-fsdp-gpt and huggingface/notebooks sagemaker/25"
_SAGEMAKER_QLORA = "huggingface/notebooks sagemaker/28_train_llms_with_qlora"
_SAGEMAKER_ISSUE = "github.com/aws/amazon-sagemaker-examples issue 1543"


def _ec2(usd: float, date: str = "2023-08-30", region: str = "us-east-1") -> Price:
    source = _LCI_2023 if date < "2024" else _PRICING_2025
    return Price(usd, "ec2", date, region, source)


def _sagemaker(usd: float, date: str, source: str) -> Price:
    return Price(usd, "sagemaker", date, "not recorded", source)


_PAGE_AND_LINKS = f"{EC2_PAGE}; {MLE_LINKS}"
_GUIDE_AND_LINKS = f"{EC2_GUIDE}; {MLE_LINKS}"

_DGX = f"NVIDIA DGX A100, H100 and H200 data sheets; {MLE_LINKS}"

_P3 = "network as commonly quoted, not confirmed"
_P5 = "network as commonly quoted, not confirmed; price before the cuts announced later in 2025"
_P5EN = "GPU and network as commonly quoted, not confirmed"
_PCIE3 = "PCIe 3 x16 assumed inside the node, not confirmed"
_PCIE4 = "PCIe 4 x16 assumed inside the node, not confirmed"

_P3_8_PRICES = (_ec2(12.24), _sagemaker(14.688, "2020-09", _SAGEMAKER_ISSUE))
_P4D_PRICES = (_ec2(32.7726, "2025-03-14"), _sagemaker(37.688, "2023-05", _SAGEMAKER_FSDP))
_P5_PRICES = (_ec2(98.32, "2025-03-14"),)
_P5EN_PRICES = (_ec2(84.80, "2025-03-14", "us-west-2"),)
_G4DN_PRICES = (_ec2(3.912, "2025-03-14"),)
_G5_12_PRICES = (_ec2(5.672, "2025-03-14"), _sagemaker(7.09, "2023-07", _SAGEMAKER_QLORA))

# The number columns: GPUs, bytes/s inside the node, bits/s out of it.
INSTANCES = (
    Instance("p3.2xlarge", "V100-16", 1, None, 10e9, (_ec2(3.06),), EC2_PAGE, f"up to; {_P3}"),
    Instance("p3.8xlarge", "V100-16", 4, 150 * GB, 10e9, _P3_8_PRICES, _PAGE_AND_LINKS, _P3),
    Instance("p3.16xlarge", "V100-16", 8, 150 * GB, 25e9, (_ec2(24.48),), _PAGE_AND_LINKS, _P3),
    Instance("p3dn.24xlarge", "V100-32", 8, 150 * GB, 100e9, (_ec2(31.212),), _GUIDE_AND_LINKS),
    Instance("p4d.24xlarge", "A100-40", 8, 300 * GB, 400e9, _P4D_PRICES, _GUIDE_AND_LINKS),
    Instance("p4de.24xlarge", "A100-80", 8, 300 * GB, 400e9, (_ec2(40.96575),), _GUIDE_AND_LINKS),
    Instance("p5.48xlarge", "H100", 8, 450 * GB, 3200e9, _P5_PRICES, _PAGE_AND_LINKS, _P5),
    Instance("p5en.48xlarge", "H200", 8, 450 * GB, 3200e9, _P5EN_PRICES, _PAGE_AND_LINKS, _P5EN),
    Instance("g4dn.12xlarge", "T4", 4, 15.75 * GB, 50e9, _G4DN_PRICES, EC2_GUIDE, _PCIE3),
    Instance("g5.12xlarge", "A10G", 4, 31 * GB, 40e9, _G5_12_PRICES, EC2_GUIDE, _PCIE4),
    Instance("g5.24xlarge", "A10G", 4, 31 * GB, 50e9, (_ec2(8.144),), EC2_GUIDE, _PCIE4),
    Instance("g5.48xlarge", "A10G", 8, 31 * GB, 100e9, (_ec2(16.288),), EC2_GUIDE, _PCIE4),
    # boxes that one owns: no price by the hour
    Instance("dgx-a100", "A100-80", 8, 300 * GB, 1600e9, (), _DGX),
    Instance("dgx-h100", "H100", 8, 450 * GB, 3200e9, (), _DGX),
    Instance("hgx-h200", "H200", 8, 450 * GB, 3200e9, (), _DGX, "network as of a DGX H200"),
)

SERVICES = ("ec2", "sagemaker")
