"""scripts/train.py with an address space of so many bytes more than it has at the start."""

import os
import resource
import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "train.py"
STATUS = Path("/proc/self/status")


def taken_bytes() -> int:
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("VmSize:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    import torch  # noqa: F401  its libraries take address space that is none of the model's
    import transformers  # noqa: F401

    limit = taken_bytes() + int(os.environ["MORE_BYTES"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    runpy.run_path(str(SCRIPT), run_name="__main__")
