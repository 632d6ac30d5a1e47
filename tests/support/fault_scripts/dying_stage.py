"""scripts/train.py, in which the second stage dies in its third forward of the second step."""

import itertools
import runpy
from pathlib import Path

from helpers.engine.pipeline.stages import Stage

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "train.py"
calls, run = itertools.count(1), Stage.run


def dies(stage, *arguments, **options):
    if stage.index == 1 and next(calls) == 7:  # four micro-batches per step
        raise RuntimeError("the second stage has had enough")
    return run(stage, *arguments, **options)


Stage.run = dies
runpy.run_path(str(SCRIPT), run_name="__main__")
