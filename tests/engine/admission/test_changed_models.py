"""A model, or its trainer, that somebody has changed: refused in one line, or exact."""

import copy
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn

from helpers.engine.admission.given_model import check_given
from helpers.engine.errors import UserError
from helpers.engine.parallelize import load_model, parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

ONE = ParallelPlan()
IDS = torch.arange(16).view(2, 8)


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def own_layer(model: nn.Module) -> None:
    old = model.model.layers[0].mlp.up_proj
    model.model.layers[0].mlp.up_proj = Noisy(old.in_features, old.out_features, bias=False)


def own_loss(model: nn.Module) -> None:
    model.loss_function = lambda logits, labels, **_: logits.sum()


def own_forward(model: nn.Module) -> None:
    model.forward = model.forward


def own_head_forward(model: nn.Module) -> None:
    model.lm_head.forward = model.lm_head.forward


def hook_on_head(model: nn.Module) -> None:
    model.lm_head.register_forward_hook(lambda *_: None)


CHANGES: dict[Callable[[nn.Module], None], str] = {
    own_layer: "layers.0.mlp.up_proj is a Noisy",
    own_loss: "forward or loss was replaced",
    own_forward: "forward or loss was replaced",
    own_head_forward: "lm_head is a Linear whose forward",
    hook_on_head: "hooks on the head",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_the_engine_would_compute_as_the_class_does_is_refused(change) -> None:
    model = tiny.fresh("llama", torch.float32)
    change(model)
    with pytest.raises(UserError) as caught:
        check_given(model, ONE)
    assert CHANGES[change] in str(caught.value)


@pytest.mark.parametrize("family", ("gemma3_text", "bart"))
def test_layers_of_the_class_s_own_are_no_change(family: str) -> None:
    """Embeddings that are scaled."""
    config = transformers.AutoConfig.for_model(family)
    text = config.get_text_config()
    text.update({"num_hidden_layers": 1, "vocab_size": 64, "pad_token_id": 1})
    with torch.device("meta"):
        check_given(transformers.AutoModelForCausalLM.from_config(config), ONE)


def hooked(plan: ParallelPlan) -> str:
    """Runs on a rank: what a hook that takes a gradient away is refused by; "" where it did."""
    model = tiny.fresh("llama", torch.float32)
    model.model.embed_tokens.weight.register_hook(lambda gradient: gradient * 0)
    try:
        parallelize(model, plan, mesh_of(plan))
    except UserError as error:
        return str(error)
    trainer = Trainer(model, plan, mesh_of(plan), lr=1e-3)
    trainer.backward(IDS, IDS)
    gradients = trainer.gradients()
    assert not gradients.pop("model.embed_tokens.weight").any()
    assert all(gradient.any() for gradient in gradients.values())
    return ""


def test_hooks_on_gradients_are_kept_or_refused() -> None:
    assert "has a hook on its gradient" in pool(2).run(hooked, ParallelPlan(tp=2))[0]
    assert "has a hook on its gradient" in pool(2).run(hooked, ParallelPlan(dp_shard=2))[0]
    assert pool(2).run(hooked, ParallelPlan(dp_replicate=2)) == ["", ""]


def said(plan: ParallelPlan, change: str) -> str:
    """What a trainer says to a change after it was made."""
    model = tiny.fresh("llama", torch.float32)
    model.model.layers[0].requires_grad_(change != "unfrozen")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(model, plan, mesh), plan, mesh, lr=1e-2)
    try:
        if change == "copied":
            copy.deepcopy(model)
        if change == "unfrozen":
            model.requires_grad_(True)
        if change == "scheduled":
            transformers.get_linear_schedule_with_warmup(trainer.optimizer, 2, 4)
        if change == "taken":
            Trainer(model, plan, mesh, lr=1e-3).step(IDS, IDS)
        if change == "loaded":
            model.load_state_dict(state)
        trainer.step(IDS, IDS, **({"position_ids": IDS} if change == "unknown mask" else {}))
        trainer.lr = 1e-3
        trainer.step(IDS, IDS)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("change", "words"),
    (
        ("none", ""),
        ("copied", "would compute with the original's weights"),
        ("unfrozen", "did not train when the Trainer was made"),
        ("taken", "another Trainer was made with this model since"),
        ("scheduled", "learning rate was set from outside"),
        ("unknown mask", "beside, and no position_ids"),
        ("loaded", "load weights before the Trainer is made"),
    ),
)
def test_what_is_changed_after_the_trainer_was_made(change: str, words: str) -> None:
    for plan in (ParallelPlan(precision="bf16"), ParallelPlan(dp_replicate=2, precision="bf16")):
        told = pool(plan.world_size).run(said, plan, change)
        assert all((words in one and bool(words) == bool(one)) for one in told)


def rows_added(seeded: bool) -> str:
    plan = ParallelPlan(dp_replicate=2)
    model = tiny.fresh("llama", torch.float32)
    torch.manual_seed(0 if seeded else torch.distributed.get_rank())
    model.resize_token_embeddings(model.config.vocab_size + 2, mean_resizing=False)
    model.config._name_or_path = f"node-{torch.distributed.get_rank()}"  # where it came from
    try:
        trainer = Trainer(parallelize(model, plan, mesh_of(plan)), plan, mesh_of(plan), lr=1e-3)
        trainer.step(IDS, IDS)
    except UserError as error:
        return str(error)
    return ""


def loaded_with(seed_by_rank: bool) -> str:
    plan = ParallelPlan(dp_replicate=2)
    seed = torch.distributed.get_rank() if seed_by_rank else 0
    try:
        model = load_model("gptj-tiny", plan, mesh_of(plan), seed=seed)
        Trainer(model, plan, mesh_of(plan), lr=1e-3).step(IDS, IDS)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_new_rows_and_seeds_are_the_same_on_every_rank() -> None:
    words = "the ranks held different weights"
    assert all(words in one for one in pool(2).run(rows_added, False))
    assert pool(2).run(rows_added, True) == ["", ""]
    assert all(words in one for one in pool(2).run(loaded_with, True))
    assert pool(2).run(loaded_with, False) == ["", ""]
