"""Keep the memory that a step frees for the next step, as torch does on a GPU.

On a CPU, tensors come from malloc. glibc's gives large ones back to the system when they are freed
and asks for them again in the next step: the system hands them out page by page, each a fault and
4 KiB of zeros to write. A step that frees and takes a gigabyte faults 250,000 times.

    keep_freed_memory()     # once, before the first step

The process then holds what it once needed, with gaps between, until it ends. Whoever wants it back
sets glibc's own MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_, and is obeyed.

Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD. PyTorch's performance tuning guide
preloads other mallocs to the same end.
"""

import ctypes
import os
import platform

SETTINGS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}  # malloc.h's numbers
MOST = 2**31 - 1  # bytes; mallopt takes an int


def keep_freed_memory() -> bool:
    """Let malloc keep what is freed; blocks of 2 GiB and more go back even so.

    Returns:
        whether it does: not where malloc is another than glibc's, or the environment tells it what
        to do.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in SETTINGS):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(number, MOST) for number in SETTINGS.values())
