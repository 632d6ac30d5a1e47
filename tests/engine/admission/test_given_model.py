"""A model as somebody changed it before it is laid out: exact, or refused in one line."""

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from helpers.engine.admission.given_model import check_given
from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.engine.admission.differences import Change, difference
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

LAYOUTS = {
    "one": ParallelPlan(),
    "zero-2": ParallelPlan(dp_shard=2, zero_stage=2),
    "zero-3": ParallelPlan(dp_shard=2),
    "tp": ParallelPlan(tp=2),
    "pp": ParallelPlan(pp=2),
    "cp": ParallelPlan(cp=2),
}


def freeze(model: nn.Module, part: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part not in name)


def frozen_blocks(model: nn.Module) -> None:
    freeze(model, "layers.0.")


def frozen_ends(model: nn.Module) -> None:
    freeze(model, "norm")
    model.model.embed_tokens.requires_grad_(False)


def one_parameter(model: nn.Module) -> None:
    model.model.layers[1].mlp = model.model.layers[0].mlp


def not_contiguous(model: nn.Module) -> None:
    layer = model.model.layers[0].mlp.up_proj
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())


def larger_vocabulary(model: nn.Module) -> None:
    torch.manual_seed(3)
    model.resize_token_embeddings(model.config.vocab_size + 3)


def hooked(model: nn.Module) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, given, out: 1.5 * out)


def normed_weights(model: nn.Module) -> None:
    weight_norm(model.model.layers[0].mlp.up_proj)


CHANGES = (frozen_blocks, frozen_ends, not_contiguous, larger_vocabulary, hooked)
# but for a hook that would see a part of each row, which test_replaced_parts.py has
EXACT = [(one, at) for one in CHANGES for at in LAYOUTS if (one, at) != (hooked, "cp")]


@pytest.mark.parametrize(("change", "layout"), EXACT)
def test_a_changed_model_computes_what_it_computed(change: Change, layout: str) -> None:
    plan = LAYOUTS[layout]
    assert set(pool(plan.world_size).run(difference, "llama", change, plan)) == {""}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_that_the_class_does_not_share_are_refused(layout: str) -> None:
    plan = LAYOUTS[layout]
    for words in pool(plan.world_size).run(difference, "llama", one_parameter, plan):
        assert words.startswith("model.layers.0.mlp.gate_proj.weight and model.layers.1.mlp.gate_")
        assert words.endswith("which LlamaForCausalLM itself does not make so: give each its own")


def classes_of_characters() -> None:
    """CANINE has no one table of tokens' vectors to be asked for."""
    config = transformers.CanineConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    check_given(transformers.CanineForSequenceClassification(config), ParallelPlan())


def test_a_model_without_a_table_of_tokens_is_not_asked_for_it() -> None:
    pool(1).run(classes_of_characters)


def tie_by_hand(model: nn.Module) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


@pytest.mark.parametrize("layout", ("one", "zero-3", "pp"))
def test_both_ends_may_be_tied_by_hand(layout: str) -> None:
    plan = LAYOUTS[layout]
    assert set(pool(plan.world_size).run(difference, "llama", tie_by_hand, plan)) == {""}


def test_a_parametrized_layer_is_not_split() -> None:
    for layout in ("one", "zero-3", "pp"):
        plan = LAYOUTS[layout]
        assert set(pool(plan.world_size).run(difference, "llama", normed_weights, plan)) == {""}
    for words in pool(2).run(difference, "llama", normed_weights, LAYOUTS["tp"]):
        assert words.startswith("model.layers.0.mlp.up_proj is parametrized, so tp cannot split")


def refused(make: Callable[[nn.Module], nn.Module]) -> str:
    plan = ParallelPlan()
    with pytest.raises(UserError) as caught:
        model = parallelize(make(tiny.fresh("gpt2", torch.float32)), plan, mesh_of(plan))
        Trainer(model, plan, mesh_of(plan), lr=1e-3)
    assert "\n" not in caught.value.args[0]
    return str(caught.value)


def with_adapters(model: nn.Module) -> nn.Module:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"])).base_model.model


def in_peft(model: nn.Module) -> nn.Module:
    import peft

    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"]))


def of_bytes(model: nn.Module) -> nn.Module:
    weight = model.transformer.h[0].mlp.c_fc.weight
    codes = nn.Parameter(weight.detach().to(torch.uint8), requires_grad=False)
    model.transformer.h[0].mlp.c_fc.weight = codes
    return model


def all_frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def one_layer(model: nn.Module) -> nn.Module:
    return model.transformer.h[0].mlp.c_fc


def its_class(model: nn.Module) -> type:
    return type(model)


WORDS = {
    its_class: "not the class GPT2LMHeadModel: hand it one that is made",
    in_peft: "not a PeftModel: hand it the model that this wraps",
    with_adapters: "has adapters already: load it by load_adapted",
    torch.compile: "not a OptimizedModule",
    of_bytes: "transformer.h.0.mlp.c_fc.weight is uint8: hand over the model in floating",
    all_frozen: "no parameter trains",
    one_layer: "takes a model of transformers, not a Conv1D: hand it one that is made",
}


@pytest.mark.parametrize("make", WORDS, ids=lambda make: make.__name__)
def test_what_is_no_plain_model_is_refused_in_one_line(make: Callable) -> None:
    if make in (in_peft, with_adapters):
        pytest.importorskip("peft")
    assert WORDS[make] in pool(1).run(refused, make)[0]


def with_the_formula(family: str) -> str | None:
    """What a model is refused by whose attention is to be the formula, not a kernel of torch."""
    config, plan = tiny.config(family), ParallelPlan()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    try:
        parallelize(model, plan, mesh_of(plan))
    except UserError as error:
        return str(error)
    return None


def test_a_class_whose_formula_is_another_is_refused_with_it() -> None:
    """Falcon's adds ALiBi twice."""
    assert pool(1).run(with_the_formula, "llama") == [None]
    assert pool(1).run(with_the_formula, "falcon-mqa") == [None]
    [said] = pool(1).run(with_the_formula, "falcon-alibi")
    assert said.startswith("falcon computes something else with attn_implementation='eager'")
