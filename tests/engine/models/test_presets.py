"""The configurations that come with the engine are those that were published."""

import pytest
import torch

from helpers.engine.models.configurations import load_config, presets
from helpers.engine.models.objectives import build

TINY = {"gptj-tiny", "gpt2-tiny", "falcon-tiny", "neox-tiny", "llama-tiny"}
TINY |= {"bert-tiny", "roberta-tiny"}
PUBLISHED_PARAMETERS = {
    "gptj-6b": 6_050_882_784,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "neox-20b": 20_554_567_680,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "gpt3-175b": 174_604_259_328,  # no published weights; the paper says 175.0 B
}


@pytest.mark.parametrize("name", sorted(TINY | set(PUBLISHED_PARAMETERS)))
def test_transformers_builds_every_preset_with_the_published_size(name):
    config = load_config(name)
    with torch.device("meta"):
        model = build(config)
    model.tie_weights()
    assert type(model).__name__ == config.architectures[0]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if name in TINY:
        assert config.vocab_size == 2048
        assert parameters < 1_500_000
    else:
        assert parameters == PUBLISHED_PARAMETERS[name]


def test_there_is_no_other_preset():
    assert set(presets()) == TINY | set(PUBLISHED_PARAMETERS)
