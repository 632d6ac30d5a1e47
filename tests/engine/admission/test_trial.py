"""What the small copy is tried under: as many blocks, stages and rows as can tell a difference."""

from typing import Any

import pytest

from helpers.engine.models.architecture import family_of
from helpers.engine.parallelize import parallelize
from helpers.engine.plan import ParallelPlan
from tests.support.ranks import mesh_of, pool
from tests.support.refusals import said
from tests.support.scripts import script

models = script("docs/models")
GROUPS = ParallelPlan(activation="group_2")
STAGES = {
    "interleaved": ParallelPlan(pp=2, schedule="interleaved"),
    "zero-bubble-v": ParallelPlan(pp=2, schedule="zero-bubble-v"),
}


def verdict(model_type: str, plan: ParallelPlan) -> str:
    return models.verdict(models.small_model(model_type), plan, mesh_of(plan))


@pytest.mark.parametrize("model_type", ("bamba", "glm_moe_dsa"))
def test_blocks_that_hand_on_more_than_hidden_states_are_not_grouped(model_type: str) -> None:
    """Two rows would have passed for the two results of a block."""
    (words,) = pool(1).run(verdict, model_type, GROUPS)
    assert words.startswith(f"{model_type} would not be exact under one process with activation=")
    assert "too many values to unpack" in words


def test_blocks_whose_inputs_are_read_once_more_are_not_grouped() -> None:
    """Of every sixth block of Inkling 2, which a copy of few layers has none of. Groups of four had
    another loss, and said nothing."""
    (words,) = pool(1).run(verdict, "inkling2_text", GROUPS)
    assert "with activation=group_2: its loss would be nan" in words


@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.parametrize("model_type", ("rembert", "mllama"))
def test_several_stages_a_rank_are_tried(model_type: str, schedule: str) -> None:
    """A rank that has the embedding and a later stage, too."""
    for words in pool(2).run(verdict, model_type, STAGES[schedule]):
        assert " would not be exact under pp=2 with schedule=interleaved: " in words
        assert words.partition("; exact here: ")[2].startswith("one stage a rank")


@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.parametrize("model_type", ("gemma2", "qwen3_moe", "granitemoe"))
def test_several_stages_a_rank_are_exact(model_type: str, schedule: str) -> None:
    for words in pool(2).run(verdict, model_type, STAGES[schedule]):
        assert words == "exact"


def test_the_blocks_are_the_language_models() -> None:
    """A tower for images is as deep, and larger."""
    model = models.small_model("got_ocr2")
    assert family_of(model).blocks == "model.language_model.layers"


def test_a_partition_with_too_few_layers_is_refused_before() -> None:
    plan = ParallelPlan(pp=2, schedule="interleaved", virtual_stages=3)
    for words in pool(2).run(refusal, plan):
        assert words.startswith("6 stages are too many for 4 layers")


def refusal(plan: ParallelPlan) -> str:
    return said(parallelize, models.small_model("gemma2"), plan, mesh_of(plan))


@pytest.mark.parametrize("model_type", ("deepseek_v32", "glm_moe_dsa"))
def test_keys_that_an_index_chooses_are_those_of_every_rank(model_type: str) -> None:
    """The index stays whole beside heads that are split; a part of a row is not what it is of."""
    split = ParallelPlan(tp=2, sequence_parallel=True)
    assert set(pool(2).run(verdict, model_type, split)) == {"exact"}
    (words,) = set(pool(2).run(verdict, model_type, ParallelPlan(cp=2)))
    assert "chooses keys by their places in the row" in words


def verdict_with(model_type: str, plan: ParallelPlan, fields: dict[str, Any]) -> str:
    """Of the small model whose configuration says these."""
    model = models.small_model(model_type)
    for name, value in fields.items():
        setattr(model.config, name, value)
    return models.verdict(type(model)._from_config(model.config), plan, mesh_of(plan))


@pytest.mark.parametrize("field", ("attention_chunk_size", "floor_scale"))
def test_what_begins_after_many_tokens_begins_after_few_in_the_copy(field: str) -> None:
    """Llama 4's chunks, and the scale of its queries: neither knows of other ranks' tokens."""
    fields = {"attention_chunk_size": 8192, "attn_temperature_tuning": False}
    if field == "floor_scale":
        fields |= {"attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.3}
    for words in pool(2).run(verdict_with, "llama4_text", ParallelPlan(cp=2), fields):
        assert words.startswith("llama4_text would not be exact under cp=2: its loss would be")


@pytest.mark.parametrize("model_type", ("qwen3_moe", "mixtral"))
def test_a_small_loss_beside_the_one_that_is_trained_is_not_overlooked(model_type: str) -> None:
    fields = {"output_router_logits": True, "router_aux_loss_coef": 1e-6}
    [words] = pool(1).run(verdict_with, model_type, ParallelPlan(), fields)
    assert words.endswith(
        "its loss is not the shifted cross-entropy of its logits, but also the routers': set its "
        "output_router_logits to False)"
    )
