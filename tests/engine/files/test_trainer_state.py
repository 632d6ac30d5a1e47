"""What a checkpoint holds beside what trains, and what it cannot hold."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers

from helpers.engine.errors import Diverged, UserError
from helpers.engine.files import checkpoints as checkpoint
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.files.manifest import list_checkpoints
from helpers.engine.files.trainer_state import fewer_updates, set_updates, state_of
from helpers.engine.models.architecture import family_of
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import local
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


def of_few_rows(plan: ParallelPlan, folder: Path, seed: int) -> float:
    """The second step's loss, of a run that writes a checkpoint before it or goes on from one."""
    torch.manual_seed(seed)
    config = tiny.config("llama")
    config.vocab_size = 5
    model = transformers.AutoModelForCausalLM.from_config(config)
    trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=tiny.LR)
    if not Checkpoints(folder).resume(trainer):
        trainer.step(*(x % 5 for x in tiny.batch(0)))
        Checkpoints(folder).save(trainer)
    return trainer.step(*(x % 5 for x in tiny.batch(1))).loss


@pytest.mark.parametrize("stage", (1, 3))
def test_a_rank_with_none_of_few_rows_has_nothing_to_store(stage: int, tmp_path: Path) -> None:
    """Of five rows the last of four ranks has none."""
    plan = ParallelPlan(dp_shard=4, zero_stage=stage)
    (whole, *_) = pool(4).run(of_few_rows, plan, tmp_path, 0)
    assert pool(4).run(of_few_rows, plan, tmp_path, 1) == [whole] * 4
    [anew] = pool(1).run(of_few_rows, ParallelPlan(), tmp_path, 1)
    assert anew == pytest.approx(whole, rel=1e-6)


def numbers_after(plan: ParallelPlan, then: ParallelPlan, folder: Path) -> list[list[float]]:
    """What is drawn after a checkpoint, by a run that goes on from it, and by one that begins."""
    trainer = with_experts(plan, False)
    torch.rand(5)
    Checkpoints(folder).save(trainer)
    drawn = [torch.rand(3).tolist()]
    Checkpoints(folder).resume(with_experts(then, False))
    drawn.append(torch.rand(3).tolist())
    with_experts(then, False)
    return [*drawn, torch.rand(3).tolist()]


def test_random_numbers_go_on_under_the_same_plan(tmp_path: Path) -> None:
    plan, other = ParallelPlan(dp_shard=2), ParallelPlan(dp_shard=2, zero_stage=1)
    ranks = pool(2).run(numbers_after, plan, plan, tmp_path / "same")
    assert ranks[0][0] != ranks[1][0]
    assert all(resumed == whole != begun for whole, resumed, begun in ranks)
    for whole, resumed, begun in pool(2).run(numbers_after, plan, other, tmp_path / "other"):
        assert whole != resumed == begun


def resume_of_before(folder: Path) -> bool:
    """From a checkpoint of an earlier version, which holds what trains alone."""
    trainer = with_frozen("gpt2", ParallelPlan(), 0)
    with patch.object(checkpoint, "state_of", lambda trainer: state_of(trainer, ())):
        Checkpoints(folder).save(trainer)
    return Checkpoints(folder).resume(trainer)


def test_a_checkpoint_without_what_is_frozen_is_read(tmp_path: Path) -> None:
    assert pool(1).run(resume_of_before, tmp_path) == [True]


def save_third_moments(folder: Path) -> None:
    plan = ParallelPlan()
    trainer = with_experts(plan, False)
    parts = [part.tensor for part in trainer.parts]
    trainer.optimizer = torch.optim.AdamW(parts, lr=trainer.lr, amsgrad=True)
    with pytest.raises(UserError, match="not those of amsgrad"):
        Checkpoints(folder).save(trainer)


def test_moments_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    pool(1).run(save_third_moments, tmp_path)


def test_a_step_that_was_skipped_is_nobodys_update() -> None:
    weight, moments = torch.zeros(1), {"step": torch.tensor(2.0)}
    trainer = SimpleNamespace(
        steps_done=3,
        scaler=SimpleNamespace(skipped=1),
        parts=[SimpleNamespace(name="weight", tensor=weight)],
        optimizer=SimpleNamespace(state={weight: moments}),
    )
    assert fewer_updates(trainer) == {}
    set_updates(trainer, {})
    assert moments["step"] == 2
    set_updates(trainer, {"weight": 1})
    assert moments["step"] == 1 and fewer_updates(trainer) == {"weight": 1}


class Masked(transformers.LlamaForCausalLM):
    """With a mask that files hold, as classes of people's own have."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        self.model.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))


def save_masked(folder: Path, number: float) -> bool:
    plan = ParallelPlan()
    model = parallelize(Masked(tiny.config("llama")), plan, mesh_of(plan))
    model.model.mask[0, 0] = number
    trainer, checkpoints = Trainer(model, plan, mesh_of(plan), lr=tiny.LR), Checkpoints(folder)
    checkpoints.save(trainer)
    model.model.mask.zero_()
    checkpoints.resume(trainer)
    return bool(model.model.mask.isinf().any())


def test_a_mask_may_hold_infinities_and_what_is_no_number_nowhere(tmp_path: Path) -> None:
    assert pool(1).run(save_masked, tmp_path / "whole", 0.0) == [True]
    with pytest.raises(AssertionError, match=r"model\.mask on rank 0"):
        pool(1).run(save_masked, tmp_path / "not", float("nan"))


def save_not_finite(folder: Path, what: str) -> str:
    """A checkpoint, and one more after something has gone wrong on the last rank alone."""
    plan = ParallelPlan(pp=2)
    trainer, checkpoints = with_experts(plan, False), Checkpoints(folder, keep=1)
    trainer.step(*tiny.batch(0))
    checkpoints.save(trainer)
    trainer.step(*tiny.batch(1))
    if dist.get_rank() == 1:
        part = trainer.parts[-1].tensor.detach()
        tensor = (
            part if what == "weight" else trainer.optimizer.state[trainer.parts[-1].tensor][what]
        )
        tensor.flatten()[-1] = torch.inf
    with pytest.raises(Diverged) as caught:
        checkpoints.save(trainer)
    return str(caught.value)


@pytest.mark.parametrize("what", ["weight", "exp_avg_sq"])
def test_a_state_that_is_not_finite_takes_no_good_ones_place(what: str, tmp_path: Path) -> None:
    for said in pool(2).run(save_not_finite, tmp_path, what):
        assert said.startswith("the state after step 2 is not finite (") and "on rank 1" in said
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]


def staged_in_background(plan: ParallelPlan, folder: Path) -> tuple[int, int]:
    """The bytes of the storages that a checkpoint in the background copies, and of the tensors."""
    trainer, checkpoints = with_experts(plan, False), Checkpoints(folder, background=True)
    staged: list[torch.Tensor] = []
    begin = dcp.async_save

    def seen(state: dict[str, torch.Tensor], **given: object) -> object:
        staged.extend(local(tensor) for tensor in state.values())
        return begin(state, **given)

    with patch.object(dcp, "async_save", seen):
        checkpoints.save(trainer)
        checkpoints.finish()
    storages = sum(tensor.untyped_storage().nbytes() for tensor in staged)
    return storages, sum(tensor.nbytes for tensor in staged)


def test_a_checkpoint_in_the_background_copies_a_ranks_own_parts_alone(tmp_path: Path) -> None:
    plan = ParallelPlan(dp_shard=2, zero_stage=1)
    for storages, tensors in pool(2).run(staged_in_background, plan, tmp_path):
        assert storages == tensors
