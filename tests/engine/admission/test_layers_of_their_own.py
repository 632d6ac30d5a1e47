"""Layers whose configuration says other numbers of heads than the model's: Gemma 4's."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from helpers.engine.admission.small_copies import small_configs
from helpers.engine.errors import UserError
from helpers.engine.models.configurations import load_config
from helpers.engine.models.families import own_of_layers
from helpers.engine.models.overrides import fewer_layers
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

pytestmark = pytest.mark.skipif(
    not hasattr(transformers.PreTrainedConfig, "per_layer_attributes"),
    reason="this transformers has one number for all layers",
)


def config(**sizes: Any) -> Any:
    """Its full layer has wider heads, and one of keys, which are its values, too."""
    return transformers.Gemma4TextConfig(
        **{
            "vocab_size": tiny.VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "head_dim": 8,
            "global_head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": tiny.VOCAB,
            **sizes,
        }
    )


def model() -> nn.Module:
    torch.manual_seed(0)
    return transformers.Gemma4ForCausalLM(config()).double()


def loss_under(plan: ParallelPlan) -> float:
    mesh = mesh_of(plan)
    trainer = Trainer(parallelize(model(), plan, mesh), plan, mesh, lr=tiny.LR)
    return trainer.step(*tiny.batch(0)).loss


@pytest.mark.parametrize(
    "plan", (ParallelPlan(dp_shard=2), ParallelPlan(cp=2), ParallelPlan(pp=2)), ids=repr
)
def test_they_are_laid_out_where_heads_stay_together(plan: ParallelPlan) -> None:
    """`num_key_value_heads` was read of the whole, and every layout ended in a traceback."""
    expected = tiny.plain_loss(model().train(), *tiny.batch(0)).item()
    assert pool(2).run(loss_under, plan) == pytest.approx([expected] * 2, rel=1e-5)


@pytest.mark.parametrize("plan", (ParallelPlan(tp=2), ParallelPlan(cp=2, cp_attention="ulysses")))
def test_their_heads_are_not_dealt_out(plan: ParallelPlan) -> None:
    with pytest.raises(UserError, match="layers have different num_key_value_heads"):
        plan.validate(config())


def test_their_configuration_is_read(tmp_path: Path) -> None:
    """Reading `num_key_value_heads` of the whole ended it in a traceback."""
    config().save_pretrained(tmp_path)
    assert load_config(tmp_path).per_layer_attributes == {"num_key_value_heads", "head_dim"}


def test_a_small_copy_has_them_in_layers_of_their_kind() -> None:
    kinds = 5 * ["sliding_attention"] + ["full_attention"]
    sizes = {"num_hidden_layers": 12, "layer_types": 2 * kinds, "global_head_dim": 512}
    large = config(**sizes)
    few = copy.deepcopy(large)
    fewer_layers(few)
    assert own_of_layers(few) == {1: {"head_dim": 512, "num_key_value_heads": 1}}
    small = next(small_configs(large, tp=1, each=1))
    assert own_of_layers(small) == {1: {"head_dim": 32, "num_key_value_heads": 1}}
