"""How much work a line of Python is, told by what it calls: the same on every machine and under
any load, where seconds are not."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNTED = """
import cProfile
{first}
profile = cProfile.Profile()
profile.enable()
{line}
profile.disable()
print(sum(entry.callcount for entry in profile.getstats()))
"""


def calls_of(line: str, first: str = "") -> int:
    """Calls of functions that `line` makes, after `first`, in a process that remembers nothing."""
    program = COUNTED.format(first=first, line=line)
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return int(said.stdout)
