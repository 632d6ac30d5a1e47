"""Models with no formula: counted right, or refused in one line."""

import pytest
import torch
import transformers

from helpers.engine.errors import UserError
from helpers.planner import cost
from helpers.planner.shape.families import model_shape
from tests.support.scripts import script

small_config = script("docs/small_models").small_config
# as their authors say: billions of parameters of the configuration that transformers has by default
PUBLISHED = {
    "mixtral": 46.7,  # Jiang et al. 2024, Mixtral of Experts, section 2: 47 B
    "gpt_oss": 116.8,  # OpenAI 2025, gpt-oss model card, table 1
    "deepseek_v3": 671.0,  # DeepSeek-AI 2024, DeepSeek-V3, section 4.2
}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_published_mixtures_of_experts_have_their_published_size(model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    billions = cost.parameters(model_shape(config)) / 1e9
    assert billions == pytest.approx(PUBLISHED[model_type], rel=0.05)


@pytest.mark.parametrize("model_type", ("gpt_oss", "jetmoe", "mixtral", "qwen3", "olmo2", "xglm"))
def test_small_ones_are_counted_to_the_last_parameter(model_type: str) -> None:
    config = small_config(model_type)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = cost.parameters(model_shape(config))
    assert counted == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.001)


REFUSED = {
    "mamba": "mamba has no attention heads: dry_run",
    "jamba": "blocks of jamba have 45,840 to 59,792 parameters, and are priced as one kind",
    "nemotron_h": "priced as one kind",
    "gemma4_text": "is a per-layer attribute",
    "blt": "has no embedding and list of blocks to count",
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_is_not_one_kind_of_block_is_refused_in_one_line(model_type: str) -> None:
    with pytest.raises(UserError) as caught:
        model_shape(small_config(model_type))
    assert REFUSED[model_type] in str(caught.value) and "\n" not in str(caught.value)
