"""Parts of a model that somebody replaced, patched or hooked: what the class's small copy says
nothing of. Exact where they compute for themselves, refused in one line where tp or cp is asked."""

from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.models.gptj.modeling_gptj import GPTJAttention

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.engine.admission.differences import Change, difference, made
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

APART = {
    "one": ParallelPlan(),
    "zero-3": ParallelPlan(dp_shard=2),
    "pp": ParallelPlan(pp=2, microbatches=2),
    "recomputing": ParallelPlan(activation="full"),
}
PARTED = {"tp": ParallelPlan(tp=2), "cp": ParallelPlan(cp=2)}


class Normed(nn.Module):
    """An MLP with a norm of all its features, under the class's names."""

    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = like.gate_proj, like.up_proj, like.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.gate_proj(x).relu().square() * self.up_proj(x)
        return self.down_proj(F.layer_norm(middle, middle.shape[-1:]))


class OtherNames(nn.Module):
    def __init__(self, like: nn.Module) -> None:
        super().__init__()
        self.into, self.back = like.up_proj, like.down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.into(x).relu())


def own_mlp(model: nn.Module) -> None:
    model.model.layers[1].mlp = Normed(model.model.layers[1].mlp)


def other_names(model: nn.Module) -> None:
    model.model.layers[1].mlp = OtherNames(model.model.layers[1].mlp)


def same_name(model: nn.Module) -> None:
    """As a copy of transformers' file has it."""
    own_mlp(model)
    model.model.layers[1].mlp.__class__ = type("LlamaMLP", (Normed,), {})


def attends(self: nn.Module, hidden_states: torch.Tensor, **_: object) -> tuple:
    query, key, value = (
        layer(hidden_states).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
        for layer in (self.q_proj, self.k_proj, self.v_proj)
    )
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return self.o_proj(out.transpose(1, 2).flatten(2)), None


def own_attention(model: nn.Module) -> None:
    for layer in model.model.layers:
        layer.self_attn.forward = MethodType(attends, layer.self_attn)


def other_scale(model: nn.Module) -> None:
    model.model.layers[0].self_attn.scaling = 0.7


def weaker(self: nn.Module, *args: object, **kwargs: object) -> object:
    out = type(self).forward(self, *args, **kwargs)
    return (0.9 * out[0], *out[1:]) if isinstance(out, tuple) else 0.9 * out


def own_blocks(model: nn.Module) -> None:
    """The engine has a forward of its own for GPT-J's."""
    for block in model.transformer.h:
        block.forward = MethodType(weaker, block)


def own_scores(model: nn.Module) -> None:
    def attend(self: nn.Module, query: torch.Tensor, *args: object, **kwargs: object) -> tuple:
        return type(self)._attn(self, 2 * query, *args, **kwargs)

    for block in model.transformer.h:
        block.attn._attn = MethodType(attend, block.attn)


CHANGES: dict[Change, tuple[str, str]] = {
    own_mlp: ("llama", "model.layers.1.mlp is a Normed where LlamaForCausalLM makes a LlamaMLP"),
    other_names: ("llama", "model.layers.1.mlp is a OtherNames where"),
    same_name: ("llama", "model.layers.1.mlp is a LlamaMLP where"),
    own_attention: ("llama", "forward of model.layers.0.self_attn was replaced"),
    other_scale: ("llama", "scaling of model.layers.0.self_attn was set to another value"),
    own_blocks: ("gptj", "forward of transformer.h.0 was replaced"),
}
if hasattr(GPTJAttention, "_attn"):  # up to transformers 5.23
    CHANGES[own_scores] = ("gptj", "_attn of transformer.h.0.attn was replaced")


@pytest.mark.parametrize("layout", APART)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_parts_of_ones_own_compute_what_they_compute(change: Change, layout: str) -> None:
    """The engine's own forwards were bound over them, or looked for the class's layers."""
    plan, family = APART[layout], CHANGES[change][0]
    assert set(pool(plan.world_size).run(difference, family, change, plan)) == {""}


@pytest.mark.parametrize("layout", PARTED)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_parts_of_ones_own_are_not_split(change: Change, layout: str) -> None:
    """A norm of all features was one of a rank's, and attention saw a rank's part of a row."""
    family, words = CHANGES[change]
    for told in pool(2).run(difference, family, change, PARTED[layout]):
        assert told.startswith(words) and "take dp_shard, dp_replicate or pp" in told


def hook_on_row(model: nn.Module) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, out: out + out.roll(1, 1))


def hook_on_features(model: nn.Module) -> None:
    model.model.layers[0].mlp.gate_proj.register_forward_hook(
        lambda module, given, out: F.layer_norm(out, out.shape[-1:])
    )


def hook_on_sum(model: nn.Module) -> None:
    """GPT-J's attention and MLP are added before ranks sum them."""
    model.transformer.h[0].mlp.register_forward_hook(lambda module, given, out: out.relu())


def hook_on_model(model: nn.Module) -> None:
    model.register_forward_hook(lambda module, given, out: print(out.loss))


def fewer_blocks(model: nn.Module) -> None:
    model.model.layers = model.model.layers[:1]


def fewer_in_configuration(model: nn.Module) -> None:
    model.config.num_hidden_layers = 1


def larger_head(model: nn.Module) -> None:
    model.lm_head = nn.Sequential(model.lm_head)


def other_loss(model: nn.Module) -> None:
    model.loss_type = "ForMaskedLM"


REFUSED: dict[Change, tuple[str, ParallelPlan, str]] = {
    hook_on_row: ("llama", PARTED["cp"], "model.layers.0 has a hook, which would see a part of ea"),
    hook_on_features: ("llama", PARTED["tp"], "model.layers.0.mlp.gate_proj has a hook, which wou"),
    hook_on_sum: ("gptj", PARTED["tp"], "transformer.h.0.mlp has a hook, which would see a part"),
    hook_on_model: ("llama", APART["pp"], "hooks on a model see no outputs of it in a pipeline"),
    fewer_blocks: ("llama", APART["one"], "model.layers has 1 modules, and the model's configurat"),
    fewer_in_configuration: ("llama", APART["pp"], "model.layers has 2 modules, and the model's c"),
    larger_head: ("llama", APART["one"], "lm_head is a Sequential whose forward is not the class"),
    other_loss: ("llama", APART["one"], "this model's loss_type is ForMaskedLM, and its class has"),
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_would_be_computed_otherwise_is_refused_on_every_rank(change: Change) -> None:
    family, plan, words = REFUSED[change]
    for told in pool(plan.world_size).run(difference, family, change, plan):
        assert told.startswith(words) and "\n" not in told


def packed() -> str:
    plan, (ids, labels) = ParallelPlan(), tiny.batch(0)
    model = parallelize(made("llama", own_attention), plan, mesh_of(plan))
    try:
        Trainer(model, plan, mesh_of(plan), lr=1e-2).step(ids, labels, documents=ids * 0)
    except UserError as error:
        return str(error)
    return ""


def test_attention_of_ones_own_may_not_keep_documents_apart() -> None:
    [told] = pool(1).run(packed)
    assert told.startswith("forward of model.layers.0.self_attn was replaced, which packing cannot")
