"""Parameters that ranks cannot share: a number without dims, and one of several blocks."""

from typing import ClassVar

import pytest
import torch
import transformers
from torch import nn

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from tests.support import tiny
from tests.support.ranks import mesh_of, pool

ZERO = {stage: ParallelPlan(dp_shard=2, zero_stage=stage) for stage in (1, 2, 3)}
MLP = ("gate_proj", "up_proj", "down_proj")


class Scaled(transformers.LlamaForCausalLM):
    """A learned scale of each block, as research code has it."""

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.scale = nn.Parameter(torch.tensor(1.0))
            layer.register_forward_hook(lambda module, given, out: out * module.scale)


class OneMLP(transformers.LlamaForCausalLM):
    """Blocks that have their MLP together, and say so."""

    _tied_weights_keys: ClassVar = {
        "lm_head.weight": "model.embed_tokens.weight",
        **{f"model.layers.1.mlp.{one}.weight": f"model.layers.0.mlp.{one}.weight" for one in MLP},
    }

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        self.model.layers[1].mlp = self.model.layers[0].mlp
        self.post_init()


def said(kind: type, plan: ParallelPlan) -> str:
    config = tiny.config("llama")
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    try:
        parallelize(kind(config), plan, mesh_of(plan))
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("stage", ZERO)
def test_a_number_without_dims_has_no_rows_to_share(stage: int) -> None:
    """It was an IndexError in the first step, or fully_shard's own words."""
    for told in pool(2).run(said, Scaled, ZERO[stage]):
        assert told.startswith("model.layers.0.scale is a number without dims, which dp_shard")
    assert pool(2).run(said, Scaled, ParallelPlan(dp_replicate=2)) == ["", ""]


def test_what_blocks_have_together_is_not_sharded_block_by_block() -> None:
    """It was a RuntimeError about overlapping meshes."""
    assert pool(2).run(said, OneMLP, ZERO[2]) == ["", ""]
    for told in pool(2).run(said, OneMLP, ZERO[3]):
        assert "is another block's model.layers.1.mlp." in told
        assert told.endswith("which zero_stage=3 cannot shard: take zero_stage=1 or 2")
