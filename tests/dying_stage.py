"""scripts/train.py, in which the second stage dies in its third forward of the second step."""

import itertools
import runpy
import sys
from pathlib import Path

import helpers.engine.causal as causal

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))
calls, run_stage = itertools.count(1), causal.run_stage


def dies(model, family, stage, *rest):
    if stage.index == 1 and next(calls) == 7:  # four micro-batches a step
        raise RuntimeError("the second stage has had enough")
    return run_stage(model, family, stage, *rest)


causal.run_stage = dies
runpy.run_path(str(SCRIPTS / "train.py"), run_name="__main__")
