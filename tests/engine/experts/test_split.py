"""Experts under tensor parallelism: a rank has its part of every one, and the sum is the whole."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("transformers")
import torch
import transformers
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from helpers.engine.experts.split import OfRank, experts_over_ranks
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.models.block_rules import expert_cuts
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.shards import local
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.matrix import part
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script

models = script("docs/models")
FORMS = {
    "mixtral": "a gate, and after it what it gates",
    "gpt_oss": "the two in turns, [in, out], biases",
    "aria_text": "one after the other, [in, out]",
    "nemotron_h": "no gate",
    "qwen2_moe": "an expert beside them that every token goes through",
    "deepseek_v3": "a first block without experts",
    "llama4_text": "no word of transformers' interface, which leaves the shapes",
    "zaya": "nothing but experts that tp splits",
}
# two have attention that tp does not split; one takes rows by expert, which ranks would mix up
NOT_SEQUENCE = ("nemotron_h", "zaya", "llama4_text")
SEQUENCE_PARALLEL = [one for one in FORMS if one not in NOT_SEQUENCE]


def experts_of(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "cuts", expert_cuts(module))]


def part_of_each(model_type: str, plan: ParallelPlan) -> tuple[str, set[float]]:
    """On a rank: is the model exact, and which part of the numbers that are split has it?"""
    model, mesh = models.small_model(model_type), mesh_of(plan)
    verdict = models.verdict(models.small_model(model_type), plan, mesh)
    parallelize(model, plan, mesh)
    parts = {
        local(parameter).numel() / parameter.numel()
        for experts in experts_of(model)
        for parameter in experts.parameters()
        if isinstance(parameter, DTensor)
    }
    return verdict, parts


@pytest.mark.parametrize(
    ("model_type", "sequence_parallel"),
    [(one, False) for one in FORMS] + [(one, True) for one in SEQUENCE_PARALLEL],
)
def test_every_rank_has_a_part_of_every_expert(model_type: str, sequence_parallel: bool) -> None:
    if not experts_of(models.small_model(model_type)):
        pytest.skip(f"{model_type}'s experts are called otherwise in this version of transformers")
    plan = ParallelPlan(tp=2, sequence_parallel=sequence_parallel)
    assert set(map(repr, pool(2).run(part_of_each, model_type, plan))) == {"('exact', {0.5})"}


BESIDE = {
    "tp=4": {"tp": 4},
    "zero-1": {"tp": 2, "dp_shard": 2, "zero_stage": 1},
    "zero-3": {"tp": 2, "dp_shard": 2},
    "pipeline": {"tp": 2, "pp": 2, "schedule": "zero-bubble"},
    "context": {"tp": 2, "cp": 2},
    "recomputing": {"tp": 2, "activation": "full", "sequence_parallel": True},
}


@pytest.mark.parametrize("name", BESIDE)
def test_other_axes_beside_them(name: str) -> None:
    plan = ParallelPlan(**BESIDE[name])
    model_type = "gpt_oss" if plan.cp == 1 else "mixtral"
    answers = pool(plan.world_size).run(part_of_each, model_type, plan)
    assert {verdict for verdict, _ in answers} == {"exact"}
    assert all(parts for _, parts in answers)


def saved(model_type: str, plan: ParallelPlan, folder: Path) -> None:
    Checkpoints(folder).save(trained(model_type, plan, steps=2))


def trained(model_type: str, plan: ParallelPlan, steps: int) -> Trainer:
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(models.small_model(model_type), plan, mesh), plan, mesh, lr=1e-3)
    for step in range(steps):
        trainer.step(*tiny.batch(step))
    return trainer


def next_losses(model_type: str, plan: ParallelPlan, folder: Path | None) -> list[float]:
    trainer = trained(model_type, plan, steps=0 if folder else 2)
    if folder:
        Checkpoints(folder).resume(trainer)
    return [trainer.step(*tiny.batch(step)).loss for step in (2, 3)]


CHANGES = ("one to tp=2", "zero-3 to one", "zero-1 to zero-3", "zero-3 to zero-1")
OTHER_CHANGES = ("one to pipeline", "zero-1 to tp=2", "zero-3 to pipeline", "tp=4 to one")


@pytest.mark.parametrize("change", part(CHANGES, OTHER_CHANGES))
def test_a_checkpoint_goes_on_under_another_plan(change: str, tmp_path: Path) -> None:
    plans = BESIDE | {"one": {}, "tp=2": {"tp": 2}}
    before, after = (ParallelPlan(**plans[name]) for name in change.split(" to "))
    [expected] = pool(1).run(next_losses, "mixtral", ParallelPlan(), None)
    pool(before.world_size).run(saved, "mixtral", before, tmp_path)
    for losses in pool(after.world_size).run(next_losses, "mixtral", after, tmp_path):
        assert losses == pytest.approx(expected, rel=1e-5)


def saved_whole(folder: Path) -> None:
    """As before experts were split: gate and up as one dim."""
    plan = ParallelPlan()
    model = parallelize(models.small_model("mixtral"), plan, mesh_of(plan))
    model.split_shapes = {}
    Checkpoints(folder).save(Trainer(model, plan, mesh_of(plan), lr=1e-3))


@pytest.mark.parametrize("name", ("zero-3", "zero-1"))
def test_a_checkpoint_of_an_earlier_version_is_told_what_to_do(name: str, tmp_path: Path) -> None:
    plan = ParallelPlan(**BESIDE[name])
    pool(1).run(saved_whole, tmp_path)
    for told in pool(plan.world_size).run(said, next_losses, "mixtral", plan, tmp_path):
        assert "was written by an earlier version, which did not split " in told
        assert told.endswith("export its weights with that version, and begin from them")


def columns(rank_count: int) -> bool:
    """On a rank: has it of each expert's gate and of what that gates the same columns?"""
    plan = ParallelPlan(tp=rank_count)
    plain, model = models.small_model("mixtral"), models.small_model("mixtral")
    model.load_state_dict(plain.state_dict())
    mesh = mesh_of(plan)
    parallelize(model, plan, mesh)
    rank = mesh.get_local_rank("tp")
    (whole, *_), (split, *_) = experts_of(plain), experts_of(model)
    gate, up = whole.gate_up_proj.chunk(2, 1)
    own = torch.stack([x.chunk(rank_count, 1)[rank] for x in (gate, up)], 1)
    down = whole.down_proj.chunk(rank_count, 2)[rank]
    return torch.equal(local(split.gate_up_proj), own) and torch.equal(local(split.down_proj), down)


@pytest.mark.parametrize("ranks", (2, 4))
def test_gate_and_gated_are_cut_alike(ranks: int) -> None:
    assert all(pool(ranks).run(columns, ranks))


def weights_past_the_boundary(self: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor):
    """A router whose gradient is one rank's term of it."""
    hidden = self.boundary.enter(hidden)
    own = {name: local(parameter) for name, parameter in self.named_parameters()}
    out = type(self).forward(OfRank(self, own), hidden, chosen, weights)
    return self.boundary.leave(out)


def bias_of_every_rank(self: nn.Module, *args: Any) -> Tensor:
    with patch("helpers.engine.experts.split.share", lambda bias, ranks: bias):
        return experts_over_ranks(self, *args)


FAULTS = {weights_past_the_boundary.__name__: weights_past_the_boundary}
FAULTS[bias_of_every_rank.__name__] = bias_of_every_rank


def split_with(fault: str) -> tuple[bool, int]:
    """On a rank that splits experts in a wrong way: does the model have them whole, and exact?"""
    from helpers.engine.admission.admitted import admitted_kind

    plan = ParallelPlan(tp=2)
    admitted_kind.cache_clear()
    with patch("helpers.engine.experts.split.experts_over_ranks", FAULTS[fault]):
        model = parallelize(models.small_model("gpt_oss"), plan, mesh_of(plan))
    admitted_kind.cache_clear()
    whole = not any(isinstance(p, DTensor) for one in experts_of(model) for p in one.parameters())
    return whole, len(model.family.row)


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_exact_is_not_split(fault: str) -> None:
    for whole, split_layers in pool(2).run(split_with, fault):
        assert whole and split_layers == 1  # attention is split all the same


def test_a_width_that_ranks_do_not_divide_is_refused() -> None:
    config = transformers.Qwen3MoeConfig(
        num_attention_heads=6, num_key_value_heads=6, intermediate_size=96, moe_intermediate_size=32
    )
    ParallelPlan(tp=2).validate(config)
    words = "tp=3 does not divide the width 32 of qwen3_moe's experts"
    assert said(ParallelPlan(tp=3).validate, config) == words
