"""The small copy that decides can be made of models of published sizes, and has their kinds of
blocks."""

import copy
import re

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.engine.admission.admitted import ALONE, admitted_kind, kind_of
from helpers.engine.admission.small_copies import small_configs, small_heads
from helpers.engine.admission.trial import Trial
from helpers.engine.admission.truth import LARGEST
from helpers.engine.models.architecture import family_of
from helpers.engine.parallelize import lay_out
from helpers.engine.plan import ParallelPlan
from helpers.engine.tensor.check import expert_widths
from tests.support.matrix import part

SMALL = 12_000_000  # parameters of a copy that is tried at once

# as transformers' own configuration has them, mostly a published model's: low-rank attention,
# experts, state spaces, heads by fours, a tower for images, kinds that follow from a layer's number
PUBLISHED = ("deepseek_v3", "granitemoehybrid", "codegen", "jamba", "gemma3", "mamba2")
OTHERS = ("axk1", "bamba", "beam", "falcon_h1", "falcon_mamba", "gemma4_text", "glm4_moe")
OTHERS += ("glm_moe_dsa", "got_ocr2", "kimi_linear", "laguna", "longcat_flash", "mamba")
OTHERS += ("mimo_v2_flash", "minicpm3", "phi4_multimodal", "phimoe", "qwen3_next")
OTHERS += ("recurrent_gemma", "rwkv", "solar_open", "xlstm", "youtu", "llama", "gpt_neo")


def on_meta(config: transformers.PreTrainedConfig) -> nn.Module:
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))


@pytest.mark.parametrize("tp", (1, 4))
@pytest.mark.parametrize("model_type", part(PUBLISHED, OTHERS))
def test_one_of_a_published_size_is_small_and_runs(model_type: str, tp: int) -> None:
    model = on_meta(transformers.AutoConfig.for_model(model_type))
    truth = Trial(type(model), model.config, tp).truth
    assert torch.isfinite(truth.loss)
    assert sum(p.numel() for p in truth.model.parameters()) < SMALL < LARGEST


@pytest.mark.parametrize("partial", (1.0, 0.75))
def test_rotary_positions_by_the_pair_are_cut_with_the_head(partial: float) -> None:
    """Phi-3.5 and Phi-4 have a factor for each of the 48 pairs that turn."""
    factors = {"short_factor": [1.0] * 48, "long_factor": [1.5] * 48}
    rope = {"rope_type": "longrope", "partial_rotary_factor": partial, **factors}
    heads = 24 if partial < 1 else 32
    config = transformers.Phi3Config(
        num_attention_heads=heads,
        rope_parameters=rope | {"rope_theta": 10000.0, "original_max_position_embeddings": 4096},
        max_position_embeddings=131072,
    )
    assert torch.isfinite(Trial(transformers.Phi3ForCausalLM, config, 2).truth.loss)


def test_what_follows_from_a_width_follows_from_the_copys() -> None:
    """MiniCPM3 divides its logits by its width over 256. In the copy's place the model's own scale
    was taken, and the pipeline refused."""
    model = on_meta(transformers.AutoConfig.for_model("minicpm3"))
    for plan in (ParallelPlan(), ParallelPlan(pp=2)):
        family = admitted_kind(kind_of(model), plan, ALONE, "cpu", lay_out)
        assert not family.whole_logits


def test_pieces_of_a_row_are_of_the_copys_rows() -> None:
    """A row of 128 tokens divides by 64, the copy's does not."""
    config = transformers.BertConfig(num_hidden_layers=2, chunk_size_feed_forward=64)
    assert torch.isfinite(Trial(transformers.BertForMaskedLM, config).truth.loss)


def test_noise_of_a_router_is_no_difference() -> None:
    model = on_meta(transformers.AutoConfig.for_model("phimoe"))
    assert model.config.router_jitter_noise > 0
    admitted_kind(kind_of(model), ParallelPlan(), ALONE, "cpu", lay_out)


@pytest.mark.parametrize("model_type", ("qwen2_moe", "deepseek_v3", "mixtral"))
def test_experts_of_a_copy_are_wide_enough_for_the_ranks(model_type: str) -> None:
    """They were as wide whatever tp was, and tp=16 refused."""
    small = next(small_configs(transformers.AutoConfig.for_model(model_type), 16, 1))
    assert [width % 16 for width in expert_widths(on_meta(small))] == [0]


KINDS = ("deepseek_v3", "jamba", "qwen3_next", "recurrent_gemma", "bamba", "nemotron_h", "gemma3")


@pytest.mark.parametrize("each", (1, 2))
@pytest.mark.parametrize("model_type", KINDS)
def test_it_has_every_kind_of_block(model_type: str, each: int) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    whole, small = kinds(on_meta(config)), kinds(on_meta(next(small_configs(config, 1, each))))
    assert {*whole} == {*small}
    assert len(small) <= len(whole)


def kinds(model: nn.Module) -> list[frozenset[str]]:
    """Of each block the names of its parameters, experts under one number."""
    return [
        frozenset(re.sub(r"\.\d+\.", ".0.", name) for name, _ in block.named_parameters())
        for block in model.get_submodule(family_of(model).blocks)
    ]


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from((1, 2, 3, 4, 8, 16)))
@settings(deadline=None)
def test_few_heads_stand_to_each_other_and_to_ranks_as_many_do(
    groups: int, each: int, tp: int
) -> None:
    """Shared or not, several groups for a rank or several ranks for a group."""
    heads, few_groups = small_heads(groups * each, groups, tp)
    assert heads % few_groups == 0 and heads % tp == 0
    assert (heads > few_groups) == (each > 1)
    if groups % tp == 0:
        assert few_groups % tp == 0
        assert each == 1 or few_groups // tp == min(2, groups // tp)
    elif tp % groups == 0 and each > 1:
        assert few_groups == groups
