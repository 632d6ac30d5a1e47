"""What this machine has: GPUs, CPU cores, memory, disk."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from helpers.lab.paths import ROOT

GB = 1e9


@dataclass(frozen=True)
class Device:
    """A GPU, as torch names it.

    has_bf16: can it multiply bf16? Not before compute capability 8, as a T4 or a V100.
    """

    name: str
    memory_bytes: int
    has_bf16: bool = True


@dataclass(frozen=True)
class Machine:
    """What was found. `gpus` are those that torch can use; `memory_bytes` is None where unknown."""

    gpus: tuple[Device, ...]
    cores: int
    memory_bytes: int | None
    free_disk_bytes: int

    @property
    def words(self) -> str:
        """'2 x NVIDIA H200, 151 GB each' or 'no GPU, 8 CPU cores'."""
        if not self.gpus:
            return f"no GPU, {self.cores} CPU core{'s' if self.cores > 1 else ''}"
        names = sorted({gpu.name for gpu in self.gpus})
        least = min(gpu.memory_bytes for gpu in self.gpus) / GB
        return f"{len(self.gpus)} x {', '.join(names)}, {least:.0f} GB each"


def find_machine() -> Machine:
    """Look at this machine. Starts no process and reserves no GPU memory."""
    import torch  # slow to import, and whoever wants the cores alone needs none of it

    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(Device(properties.name, properties.total_memory, properties.major >= 8))
    return Machine(tuple(gpus), cores(), _memory_bytes(), shutil.disk_usage(ROOT).free)


def cores() -> int:
    """The CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int | None:
    """Memory of the machine, or of the container where that is less."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    try:
        return min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control group, or its limit is the word "max"
        return memory
