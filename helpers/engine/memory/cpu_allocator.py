"""What malloc does with the memory that is freed on a CPU: a step's is kept for the next step, as
torch does on a GPU, and a load's goes back.

On a CPU, tensors come from malloc. glibc's gives large ones back to the system when they are freed
and asks for them again in the next step: the system hands them out page by page, each a fault and
4 KiB of zeros to write. A step that frees and takes a gigabyte faults 250,000 times.

    keep_freed_memory()     # once, before the first step

The process then holds what it once needed, with gaps between, until it ends. A load would leave the
most gaps: what it keeps comes to lie among windows of files that it frees, and they grew a model in
four bits by up to five sixths. So while a model is loaded, large blocks lie each by itself.

    with large_blocks_apart("cpu"):
        ...

Whoever wants it otherwise sets glibc's own MALLOC_MMAP_THRESHOLD_ or MALLOC_TRIM_THRESHOLD_, and is
obeyed.

Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD. PyTorch's performance tuning guide
preloads other mallocs to the same end.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}  # malloc.h's numbers
MOST = 2**31 - 1  # bytes; mallopt takes an int


LARGE = 2**17  # bytes of a block that lies by itself; glibc's own at first, which grows


def keep_freed_memory() -> bool:
    """Let malloc keep what is freed; blocks of 2 GiB and more go back even so.

    Returns:
        whether it does: not where malloc is another than glibc's, or the environment tells it what
        to do.
    """
    return _set(*SETTINGS.values(), to=MOST)


@contextmanager
def large_blocks_apart(device_type: str) -> Iterator[None]:
    """For so long a large block is given back when it is freed; then freed memory is kept. On
    another device than a CPU nothing is changed."""
    if device_type != "cpu":
        yield
        return
    _set(SETTINGS["MALLOC_MMAP_THRESHOLD_"], to=LARGE)
    try:
        yield
    finally:
        keep_freed_memory()


def _set(*numbers: int, to: int) -> bool:
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in SETTINGS):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(number, to) for number in numbers)
