"""Is this machine ready, and for what? A line a fact, each with a verdict and a next step.

python -m helpers.lab.doctor        exit code 0: ready; 1: a line says fail
doctor()                            the same as a table in a notebook
"""

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from helpers.lab.machine.report import FAIL, OK, WARN, Line, Report, install

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:  # the one package without which nothing below can be imported
    if __name__ == "__main__":
        sys.exit(f"[fail] torch  not installed  -> {install('torch')}")
    raise

from helpers.engine.errors import UserError
from helpers.lab.launch.launch import launch
from helpers.lab.machine import installed_versions as installed
from helpers.lab.machine import two_rank_check
from helpers.lab.machine.hardware import Machine, find_machine
from helpers.lab.machine.installed_versions import HELPERS, Requirement
from helpers.lab.notebook.preflight import PROFILES, runnable
from helpers.lab.paths import ROOT, shown
from helpers.lab.runs.failure_report import RunFailed
from helpers.text.bundled import bundled

GB = 1e9
LEAST_MEMORY_BYTES, GOOD_MEMORY_BYTES = 3 * GB, 6 * GB
LEAST_DISK_BYTES, GOOD_DISK_BYTES = 0.2 * GB, 2 * GB
ALL_REDUCE_TIMEOUT_S = 90
SUMS = "SHA256SUMS"
