"""Weights in 16 bits, of models of which transformers' classes mix them with float32."""

import copy

import pytest
import torch
import torch.nn.functional as F

from helpers.engine.errors import UserError
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from helpers.engine.trainer import Trainer
from tests.support.ranks import mesh_of, pool
from tests.support.scripts import script

small_model = script("docs/small_models").small_model
PLAN = ParallelPlan(dp_shard=2, zero_stage=2, precision="bf16")


def first_loss(model_type: str) -> tuple[float, float] | str:
    """Of a step in bf16, and of the class in float32."""
    model = small_model(model_type).float()
    ids = torch.randint(2, 60, (4, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = copy.deepcopy(model)(ids, use_cache=False).logits
    plain = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    try:
        trainer = Trainer(parallelize(model, PLAN, mesh_of(PLAN)), PLAN, mesh_of(PLAN), lr=1e-3)
    except UserError as error:
        return str(error)
    return trainer.step(ids, ids).loss, plain.item()


@pytest.mark.parametrize("model_type", ("mamba", "falcon_mamba", "mamba2", "mixtral", "qwen3_moe"))
def test_hidden_states_and_experts_meet_weights_of_their_dtype(model_type: str) -> None:
    for found, plain in pool(2).run(first_loss, model_type):
        assert found == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("model_type", ("xglm", "minimax"))
def test_what_cannot_is_refused_in_one_line(model_type: str) -> None:
    """Tables of positions in float32 are added to hidden states, and stay so."""
    for words in pool(2).run(first_loss, model_type):
        assert words.startswith(f"{model_type} does not run with its weights in bfloat16 (")
        assert words.endswith("): take precision fp32")
