"""What a SageMaker job starts on each rank: train.py, with the job's hyperparameters as its flags.

A job gives every hyperparameter to its script as a name and a value, a switch as well:
`--save True`, `--save False`. (Read by argparse's `type=bool`, as a published script does, both
mean true.) Here they become `--save` and `--no-save`, and a list in JSON becomes its items.
"""

import json
import runpy
import sys
from pathlib import Path

SWITCHES = {"True": "--{}", "False": "--no-{}"}  # as the job's own toolkit writes them


def flags(arguments: list[str]) -> list[str]:
    """The script's flags from names and values in turn."""
    found = []
    for name, value in zip(arguments[::2], arguments[1::2], strict=True):
        if value in SWITCHES:
            found.append(SWITCHES[value].format(name.removeprefix("--")))
        elif value.startswith("["):
            found += [name, *json.loads(value)]
        else:
            found += [name, value]
    return found


if __name__ == "__main__":
    scripts = Path(__file__).resolve().parent / "scripts"
    sys.path.insert(0, str(scripts))
    sys.argv = [str(scripts / "train.py"), *flags(sys.argv[1:])]
    runpy.run_path(sys.argv[0], run_name="__main__")
