"""A pipeline rank may hold nothing that trains: who freezes the lower blocks freezes its first."""

import re
from pathlib import Path

import pytest
import torch

from helpers.engine.files.checkpoints import Checkpoints, pick
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.matrix import each
from tests.support.ranks import mesh_of, pool

ONE = ParallelPlan()
TRAINS = {"upper blocks": "layers.[23]|^model.norm", "head": "lm_head", "second block": "layers.1."}


def trainer_of(plan: ParallelPlan, trains: str) -> Trainer:
    model = tiny.fresh("llama", torch.float64, layers=4)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(re.search(trains, name) is not None)
    return Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)


def trained(plan: ParallelPlan, trains: str, folder: Path) -> list[tuple[float, float]]:
    """Losses and norms of four steps, before the last of which a checkpoint is loaded."""
    trainer = trainer_of(plan, trains)
    found = [trainer.step(*tiny.batch(step)) for step in range(3)]
    checkpoints = Checkpoints(folder)
    checkpoints.save(trainer)
    trainer = trainer_of(plan, trains)
    checkpoints.load(trainer, pick(folder))
    return [(one.loss, one.grad_norm) for one in [*found, trainer.step(*tiny.batch(3))]]


LAYOUTS = {
    "pp": {"pp": 2},
    "zero-bubble": {"pp": 2, "schedule": "zero-bubble", "activation": "full"},
    "interleaved": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
    "tp": {"pp": 2, "tp": 2},
    "zero-3": {"pp": 2, "dp_shard": 2},
    "zero-2": {"pp": 2, "dp_shard": 2, "zero_stage": 2},
    "copied": {"pp": 2, "dp_replicate": 2},
}


@pytest.mark.parametrize(("part", "layout"), each(TRAINS, LAYOUTS))
def test_ranks_without_anything_to_train_take_part(part: str, layout: str, tmp_path: Path) -> None:
    [expected] = pool(1).run(trained, ONE, TRAINS[part], tmp_path / "one")
    plan = ParallelPlan(microbatches=4, **LAYOUTS[layout])
    for found in pool(plan.world_size).run(trained, plan, TRAINS[part], tmp_path / "many"):
        for ours, theirs in zip(found, expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9)
