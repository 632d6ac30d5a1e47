"""What a checkpoint holds beside what trains, and what it cannot hold."""

from pathlib import Path

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.models.architecture import family_of
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


def with_frozen(family: str, plan: ParallelPlan, seed: int) -> Trainer:
    """Of a model that is drawn from that seed, whose first block and embedding do not train."""
    torch.manual_seed(seed)
    model = tiny.auto_class(family).from_config(tiny.config(family)).double()
    model.get_input_embeddings().requires_grad_(False)
    model.get_submodule(family_of(model).blocks)[0].requires_grad_(False)
    return Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)


def save_frozen(family: str, plan: ParallelPlan, folder: Path) -> float:
    trainer = with_frozen(family, plan, 0)
    trainer.step(*tiny.batch(0))
    Checkpoints(folder).save(trainer)
    return trainer.step(*tiny.batch(1)).loss


def resume_frozen(family: str, plan: ParallelPlan, folder: Path) -> float:
    trainer = with_frozen(family, plan, 1)
    trainer.evaluate([tiny.batch(0)])  # after which ZeRO-3 may hold some parameters whole
    Checkpoints(folder).resume(trainer)
    return trainer.step(*tiny.batch(1)).loss


FROZEN = {
    "one": ("gpt2", ParallelPlan()),
    "tp2": ("gpt2", ParallelPlan(tp=2)),
    "zero-1": ("gptj", ParallelPlan(dp_shard=2, zero_stage=1)),
    "zero-3": ("gptj", ParallelPlan(dp_shard=2)),
    "pp2": ("gpt2", ParallelPlan(pp=2)),  # whose ends share the frozen embedding
}
CHANGES = [("one", "tp2"), ("tp2", "pp2"), ("zero-3", "one")]


@pytest.mark.parametrize(("saved", "resumed"), [(name, name) for name in FROZEN] + CHANGES)
def test_frozen_parameters_go_on(saved: str, resumed: str, tmp_path: Path) -> None:
    family, plan = FROZEN[saved]
    (whole, *_) = pool(plan.world_size).run(save_frozen, family, plan, tmp_path)
    other = FROZEN[resumed][1]
    for anew in pool(other.world_size).run(resume_frozen, family, other, tmp_path):
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
