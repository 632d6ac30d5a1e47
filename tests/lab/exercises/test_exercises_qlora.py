"""The exercises about adapters and 4-bit weights, and the drawn idea."""

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")
from helpers.engine.models.configurations import load_config
from helpers.lab.drawings.lora import HELD, draw_adapters
from helpers.lab.exercises.topics import qlora as grading
from helpers.planner.cost import parameters
from helpers.planner.model.adapters import adapted_state
from helpers.planner.shape.families import model_shape


@pytest.mark.parametrize(("model", "rank"), [("falcon-7b", 16), ("falcon-40b", 64)])
def test_the_count_is_that_of_the_model_itself(model, rank):
    config = load_config(model)
    count = grading.adapter_numbers(model_shape(config), rank)
    assert 4 * count == adapted_state(config, rank).gradients


def test_what_full_lora_and_qlora_hold_by_hand():
    config = load_config("falcon-40b")
    count, adapters = parameters(model_shape(config)), 444_334_080
    lora = adapted_state(config, 64, base_bytes=2)
    assert vars(lora) == {
        "parameters": 2 * count + 4 * adapters,
        "gradients": 4 * adapters,
        "optimizer": 8 * adapters,
    }
    matrices = 60 * 8192 * (9216 + 8192 + 2 * 4 * 8192)
    held = adapted_state(config, 64, quantize=True, base_bytes=2).parameters
    eighths = (lora.parameters - held) / matrices  # a half byte and an eighth of a bit are left
    assert eighths == pytest.approx(2 - 0.5 - 1 / 64, rel=1e-3)


def test_the_levels_and_the_rounding_are_bitsandbytes_own():
    functional = pytest.importorskip("bitsandbytes").functional
    weights = torch.randn(640, generator=torch.Generator().manual_seed(0))
    codes, state = functional.quantize_4bit(weights, blocksize=64, quant_type="nf4")
    assert torch.equal(state.code, torch.tensor(grading.LEVELS))
    theirs = functional.dequantize_4bit(codes, state)
    assert torch.allclose(grading.rounded(weights), theirs, atol=1e-6)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda weights: weights / 2, "its level is 1 or -1"),
        (lambda weights: weights[:3], "a tensor of shape"),
        (lambda weights: 1 / 0, "raises ZeroDivisionError"),
        (3, "A function is wanted"),
    ],
)
def test_wrong_roundings(answer, words):
    result = grading.nf4(answer)
    assert not result.right and words in result.words


def test_the_idea_shows_every_method():
    fig, table, alt = draw_adapters()
    assert list(table.index) == list(HELD) and all(name in alt for name in HELD)
    boxes = len(fig.axes[0].patches) / 2  # each is filled and outlined
    assert boxes == 4 + 2 * (1 + 2 * 4)
