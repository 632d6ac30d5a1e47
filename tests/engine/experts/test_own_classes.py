"""Experts of classes of one's own, and of widths that make no whole rows for each rank."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, MixtralForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from helpers.engine.errors import UserError
from helpers.engine.files.checkpoints import Checkpoints
from helpers.engine.models.block_rules import expert_cuts
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

models, small_models = script("docs/models"), script("docs/small_models")


class Plain(MixtralExperts):
    """In a forward of its own."""

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(hidden)
        for expert in range(self.num_experts):
            tokens, place = torch.where(chosen == expert)
            both = hidden[tokens] @ self.gate_up_proj[expert].T
            if hasattr(self, "gate_up_proj_bias"):
                both = both + self.gate_up_proj_bias[expert]
            gate, up = both.chunk(2, -1)
            made = self.middle(self.act_fn(gate) * up) @ self.down_proj[expert].T
            if hasattr(self, "gate_up_proj_bias"):
                made = made + self.down_proj_bias[expert]
            out = out.index_add(0, tokens, made * weights[tokens, place, None])
        return out

    def middle(self, x: Tensor) -> Tensor:
        return x


class Normed(Plain):
    """Of whose middle each rank would have a norm of its own."""

    def middle(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


class Dropping(Plain):
    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(0.5)

    def middle(self, x: Tensor) -> Tensor:
        return self.dropout(x)


class Biased(Plain):
    """With biases of gates and what they gate, one after the other."""

    def __init__(self, config):
        super().__init__(config)
        self.gate_up_proj_bias = nn.Parameter(torch.ones(self.gate_up_proj.shape[:2]))
        self.down_proj_bias = nn.Parameter(torch.ones(self.down_proj.shape[:2]))


class WithOwnExperts(MixtralForCausalLM):
    experts = Plain

    def __init__(self, config):
        super().__init__(config)
        for block in self.model.layers:
            block.mlp.experts = self.experts(config)
        self.post_init()
        for block in self.model.layers:
            for parameter in block.mlp.experts.parameters():
                nn.init.normal_(parameter, std=0.1)


class WithNormed(WithOwnExperts):
    experts = Normed


class WithDropping(WithOwnExperts):
    experts = Dropping


class WithBiased(WithOwnExperts):
    experts = Biased


def made(model_class: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return model_class(small_models.small_config("mixtral")).train()


def experts_split(model: nn.Module) -> bool:
    named = model.named_parameters()
    return any(isinstance(p, DTensor) for name, p in named if ".experts." in name)


def trained(model_class: type[nn.Module], plan: ParallelPlan, steps: int) -> Trainer:
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(made(model_class), plan, mesh), plan, mesh, lr=1e-3)
    for step in range(steps):
        trainer.step(*tiny.batch(step))
    return trainer


def saved(model_class: type[nn.Module], plan: ParallelPlan, folder: Path) -> float:
    """Writes a checkpoint; the loss of the step after it."""
    trainer = trained(model_class, plan, steps=2)
    Checkpoints(folder).save(trainer)
    return trainer.step(*tiny.batch(2)).loss


def resumed(model_class: type[nn.Module], plan: ParallelPlan, folder: Path) -> tuple[bool, float]:
    trainer = trained(model_class, plan, steps=0)
    Checkpoints(folder).resume(trainer)
    return experts_split(trainer.model), trainer.step(*tiny.batch(2)).loss


@pytest.mark.parametrize("then", ({"tp": 2}, {"dp_shard": 2}, {"dp_shard": 2, "zero_stage": 1}))
@pytest.mark.parametrize("first", ({}, {"tp": 2}, {"dp_shard": 2}))
def test_a_checkpoint_of_experts_that_tp_does_not_split(first, then, tmp_path: Path) -> None:
    before, after = ParallelPlan(**first), ParallelPlan(**then)
    expected, *_ = pool(before.world_size).run(saved, WithNormed, before, tmp_path)
    for split, loss in pool(after.world_size).run(resumed, WithNormed, after, tmp_path):
        assert split == (after.zero == 3)  # over data ranks, and not over tp
        assert loss == pytest.approx(expected, rel=1e-5)


def split_of(model_class: type[nn.Module]) -> tuple[bool, str]:
    plan = ParallelPlan(tp=2)
    verdict = models.verdict(made(model_class), plan, mesh_of(plan)) if model_class.exact else ""
    return experts_split(parallelize(made(model_class), plan, mesh_of(plan))), verdict


WithBiased.exact, WithDropping.exact = True, False  # of dropout each rank draws other numbers


@pytest.mark.parametrize(
    ("model_class", "splits"), [(WithBiased, True), (WithDropping, False)], ids=("bias", "dropout")
)
def test_what_tp_splits_of_them(model_class: type[nn.Module], splits: bool) -> None:
    verdict = "exact" if model_class.exact else ""
    assert set(pool(2).run(split_of, model_class)) == {(splits, verdict)}


def normed(self: MixtralExperts, *args: Tensor) -> Tensor:
    """An implementation for transformers' interface that computes as Normed does."""
    self.middle = partial(nn.functional.normalize, dim=-1)
    return Plain.forward(self, *args)


def splits_by(implementations: tuple[str, ...]) -> list[bool]:
    """Of models of one class that compute their experts so, in turn: does tp split them?"""
    ALL_EXPERTS_FUNCTIONS.register("normed", normed)
    plan, found = ParallelPlan(tp=2), []
    for implementation in implementations:
        config = small_models.small_config("mixtral")
        config._experts_implementation = implementation
        model = MixtralForCausalLM(config).train()
        found.append(experts_split(parallelize(model, plan, mesh_of(plan))))
    return found


def test_what_was_found_of_one_implementation_is_not_believed_of_another() -> None:
    names = ("eager", "normed", "batched_mm")
    assert pool(2).run(splits_by, names) == [[True, False, True]] * 2


def narrow(model_type: str, width: int, plan: ParallelPlan) -> tuple[bool, str]:
    """On a rank: are experts of that width split, and exact?"""
    config = small_models.small_config(model_type)
    config.intermediate_size = width
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    mesh = mesh_of(plan)
    verdict = models.verdict(model, plan, mesh)
    return experts_split(parallelize(model, plan, mesh)), verdict


@pytest.mark.parametrize("model_type", ("mixtral", "gpt_oss", "aria_text"))
def test_rows_of_a_rank_that_are_no_multiple_of_16_bytes(model_type: str) -> None:
    plan = ParallelPlan(tp=4)
    assert set(pool(4).run(narrow, model_type, 24, plan)) == {(True, "exact")}


def in_whole_rows(model_class: type[nn.Module] | None, width: int, plan: ParallelPlan) -> str:
    """On a rank: what refuses experts of that width; else a step of them ran."""
    config = small_models.small_config("mixtral")
    config.intermediate_size = width
    model = (model_class or MixtralForCausalLM)(config).train()
    mesh = mesh_of(plan)
    try:
        Trainer(parallelize(model, plan, mesh), plan, mesh, lr=1e-3).step(*tiny.batch(0))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("model_class", "width", "plan", "said"),
    [
        (None, 12, {"precision": "bf16"}, "in bfloat16 .* takes multiples of 8 alone"),
        (None, 12, {"precision": "bf16", "dp_shard": 2, "ep": 2}, "multiples of 8"),
        (None, 10, {}, "rows of 10 and [0-9]+ numbers, and in float32"),
        (None, 12, {}, "^$"),
        (None, 12, {"precision": "bf16", "tp": 2}, "^$"),
        (WithOwnExperts, 10, {}, "^$"),
    ],
)
def test_rows_that_a_product_by_groups_does_not_take_are_refused(
    model_class: type[nn.Module] | None, width: int, plan: dict[str, Any], said: str
) -> None:
    degrees = ParallelPlan(**plan)
    for words in pool(degrees.world_size).run(in_whole_rows, model_class, width, degrees):
        assert re.search(said, words), words


def heard(plan: ParallelPlan) -> set[str]:
    """Matrices of experts whose hooks heard of a gradient."""
    model, names = made(WithOwnExperts), set()
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.register_hook(lambda _, name=name: names.add(name))
    mesh = mesh_of(plan)
    Trainer(parallelize(model, plan, mesh), plan, mesh, lr=1e-3).backward(*tiny.batch(0))
    return names


@pytest.mark.parametrize("plan", ({}, {"dp_shard": 2, "zero_stage": 1}))
def test_what_tp_does_not_split_keeps_its_hooks(plan: dict[str, int]) -> None:
    degrees = ParallelPlan(**plan)
    for names in pool(degrees.world_size).run(heard, degrees):
        assert len(names) == 2 * small_models.small_config("mixtral").num_hidden_layers


def test_what_is_not_twice_as_wide_is_no_gate_and_what_it_gates() -> None:
    experts = made(WithOwnExperts).model.layers[0].mlp.experts
    assert expert_cuts(experts)
    experts.gate_up_proj = nn.Parameter(experts.gate_up_proj[:, 1:].detach())
    assert not expert_cuts(experts)
