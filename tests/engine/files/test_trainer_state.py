"""What a checkpoint holds beside what trains, and what it cannot hold."""

from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

EXPERTS = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
}


def with_experts(plan: ParallelPlan, biases: bool) -> Trainer:
    """Of a model as its class makes it, whose experts are chosen without biases, or with some."""
    config = tiny.config("deepseek")
    for name, value in EXPERTS.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    if biases:
        torch.nn.init.normal_(model.model.layers[1].mlp.gate.e_score_correction_bias)
    return Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)


def next_losses(plan: ParallelPlan, folder: Path) -> tuple[float, float]:
    """Of a run, and of one that goes on from its checkpoint with a model that is made anew."""
    whole, anew = with_experts(plan, True), with_experts(plan, False)
    whole.step(*tiny.batch(0))
    Checkpoints(folder).save(whole)
    Checkpoints(folder).resume(anew)
    return whole.step(*tiny.batch(1)).loss, anew.step(*tiny.batch(1)).loss


@pytest.mark.parametrize("degrees", ({}, {"tp": 2}, {"dp_shard": 2}, {"pp": 2}), ids=str)
def test_biases_of_experts_go_on(degrees: dict[str, int], tmp_path: Path) -> None:
    plan = ParallelPlan(**degrees)
    for whole, anew in pool(plan.world_size).run(next_losses, plan, tmp_path):
        assert anew == pytest.approx(whole, rel=1e-6)


def save_third_moments(folder: Path) -> None:
    plan = ParallelPlan()
    trainer = with_experts(plan, False)
    parts = [part.tensor for part in trainer.parts]
    trainer.optimizer = torch.optim.AdamW(parts, lr=trainer.lr, amsgrad=True)
    with pytest.raises(UserError, match="not those of amsgrad"):
        Checkpoints(folder).save(trainer)


def test_moments_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    pool(1).run(save_third_moments, tmp_path)
