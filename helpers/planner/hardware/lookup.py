"""GPUs, instances and prices, found by their right name, never guessed.

    peak_flops("NVIDIA A100-SXM4-40GB", "bf16")  -> 3.12e14
    peak_flops("cpu", "fp32")                     -> None: no peak is known, so no MFU is reported
    price("p4d.24xlarge", service="sagemaker")    -> 37.688 $/h, with its date and source

    price("nebius-h100x8", kind="spot")           what it costs until it is taken back

The facts are in gpus.csv, instances.csv and prices.csv: a row more there is found here.
"""

from difflib import get_close_matches
from numbers import Real
from typing import TypeVar

from helpers.engine.errors import UserError
from helpers.planner.hardware.catalog import GPU, Instance, Price, gpus, instances, prices

Row = TypeVar("Row", GPU, Instance)
LARGEST = 1e100  # beyond all that is counted; products of three such numbers are finite

SHORT_DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def find_gpu(name: str) -> GPU:
    """The GPU with this short name (`A100-40`) or torch device name (`NVIDIA A100-SXM4-40GB`).

    Raises:
        UserError: it is not in the table; the line lists the closest names.
    """
    _check_name("GPU", name)
    gpu = gpu_of(name) or _by_name(name, gpus())
    if gpu is None:
        raise _unknown("GPU", name, gpus())
    return gpu


def gpu_of(device_name: str) -> GPU | None:
    """The GPU that torch calls so, exactly. A slice of one (MIG) or a variant outside the table is
    another device: it is None, not its relative."""
    _check_name("device", device_name)
    bare = device_name.strip().removeprefix("NVIDIA ").removeprefix("Tesla ")
    return next((gpu for gpu in gpus() if gpu.torch_name and gpu.torch_name == bare), None)


def find_instance(name: str) -> Instance:
    """The instance type with this name, with or without SageMaker's `ml.` before it.

    Raises:
        UserError: it is not in the table; the line lists the closest names.
    """
    _check_name("instance", name)
    instance = _by_name(name.removeprefix("ml."), instances())
    if instance is None:
        raise _unknown("instance", name, instances())
    return instance


def peak_flops(device_name: str, dtype: object) -> float | None:
    """Dense FLOP/s of one device for a dtype, or None where no peak is known.

    Args:
        device_name: what torch calls it, exactly, as for gpu_of.
        dtype: `fp32`, `tf32`, `bf16`, `fp16`, `fp8`, or a torch dtype.
    """
    gpu = gpu_of(device_name)
    if gpu is None:
        return None
    name = str(dtype).removeprefix("torch.")
    return gpu.peak_flops.get(SHORT_DTYPES.get(name, name))


def price(
    instance: str,
    service: str | None = None,
    override: float | None = None,
    kind: str = "on demand",
) -> Price:
    """Dollars an hour for one instance, with the date it was recorded.

    Args:
        instance: an instance type of the table; any name where `override` is given.
        service: `ec2` (the machine), `sagemaker` (the same machine as a managed job) or another of
            prices.csv; the first that is recorded for the instance, where not given.
        override: your own dollars per hour, in place of the recorded price.
        kind: `on demand`, or `spot`.

    Raises:
        UserError: unknown instance or service, no recorded price, or a price that is not above 0.
    """
    if override is not None:
        if not is_amount(override):
            raise UserError(f"a price is dollars per hour above 0, not {override!r:.40}")
        return Price(instance, service or "yours", float(override), "yours", "now", "given by you")
    if service is not None and service not in services():
        raise UserError(f"service is one of {', '.join(services())}, not {service!r:.40}")
    name = find_instance(instance).name
    recorded = recorded_prices(name)
    for dated in recorded:
        if dated.kind == kind and service in (None, dated.service):
            return dated
    known = ", ".join(f"{p.service} {p.kind} {p.usd_per_hour} $/h ({p.date})" for p in recorded)
    what = f"{service} price {kind}" if service else f"price {kind}"
    raise UserError(
        f"no dated {what} is known for {name} (known: {known or 'none, one owns it'}): "
        f"give your own with override=..."
    )


def services() -> list[str]:
    """Whose prices are recorded."""
    return list(dict.fromkeys(price.service for price in prices()))


def recorded_prices(instance: str) -> list[Price]:
    """The rows of prices.csv for an instance, by its name in instances.csv."""
    return [price for price in prices() if price.instance == instance]


def is_amount(value: object) -> bool:
    """Is this a number above 0 that something can have?"""
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and 1 / LARGEST < value < LARGEST


def check_amounts(**numbers: float) -> None:
    """Raise a UserError that names the first that is no amount."""
    for name, number in numbers.items():
        if not is_amount(number):
            raise UserError(f"{name} must be a number above 0 and below 1e100, not {number!r:.40}")


def check_amounts_or_zero(**numbers: float) -> None:
    """Raise a UserError that names the first that is neither 0 nor an amount."""
    check_amounts(**{name: one for name, one in numbers.items() if one is False or one != 0})


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str):
        raise UserError(f"give the name of the {kind}, not {name!r:.40}")


def _by_name(name: str, table: tuple[Row, ...]) -> Row | None:
    wanted = name.strip().lower()
    return next((row for row in table if wanted in map(str.lower, _names(row))), None)


def _names(row: Row) -> list[str]:
    return row.names if isinstance(row, GPU) else [row.name]


def _unknown(kind: str, name: str, table: tuple[Row, ...]) -> UserError:
    wanted = name.strip().lower()
    known = {each.lower(): each for row in table for each in _names(row)}
    close = [key for key in known if wanted and wanted in key]
    close = close or get_close_matches(wanted, known, n=3, cutoff=0.4)
    word, shown = ("close", close) if close else ("known", known)
    return UserError(
        f"unknown {kind} {name!r:.40}; {word}: {', '.join(known[key] for key in shown)}"
    )
