"""How the answers about adapters and 4-bit weights are judged."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from helpers.engine.adapters.nf4 import BLOCK
from helpers.engine.files.weights import load_config
from helpers.lab.exercises.tensor import NOT_DONE, Result, incomplete, kind_of, number_of
from helpers.planner.cost import Shape, model_shape, parameters, state_bytes
from helpers.planner.model.adapters import adapted_state

# Dettmers et al. 2023, QLoRA, appendix E
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
RANK, GPUS = 16, 4


def adapter_numbers(shape: Shape, rank: int) -> int:
    """How many numbers adapters beside Falcon's four linear layers have."""
    query, key_value, *rest = shape.block
    ends = query.inputs + query.outputs + key_value.outputs
    return shape.layers * rank * (ends + sum(one.inputs + one.outputs for one in rest))


def trainable_count(answer: Any) -> Result:
    """4a: how many numbers adapters of rank 16 train beside Falcon-7B."""
    if (number := number_of(answer)) is None:
        return Result(words=f"A number is wanted, not {kind_of(answer)}.")
    shape = model_shape(load_config("falcon-7b"))
    expected = adapter_numbers(shape, RANK)
    if number == expected:
        return Result(True, f"{expected / parameters(shape):.2%} of the model's own parameters.")
    each, width = shape.layers * RANK, shape.hidden
    fused = shape.block[0].outputs + shape.block[1].outputs
    slips = {
        expected + each * (3 * width - fused): "Falcon-7B has one head of keys and of values.",
        expected + each * width: "Query, key and value are one fused matrix: one A, not two.",
        each * (width + fused): "That is the fused query, key, value alone; there are four layers.",
        expected // shape.layers: "That is one layer's.",
        expected // RANK: "That is rank 1.",
    }
    return Result(words=slips.get(number, ""))


def nf4(answer: Any) -> Result:
    """4b: the reader's nf4(weights) against the nearest level, a magnitude for each 64 weights."""
    if not callable(answer):
        return Result(words=f"A function is wanted, not {kind_of(answer)}.")
    for size in (BLOCK, 8 * BLOCK):
        drawn = torch.randn(size, generator=torch.Generator().manual_seed(size))
        weights = drawn * torch.linspace(2.0, 0.1, size)  # so that the blocks' magnitudes differ
        try:
            found = answer(weights.clone())
        except Exception as error:
            return Result(words=f"It raises {type(error).__name__}: {error}.")
        if found is None:
            return NOT_DONE
        if words := _look(found, weights):
            return Result(words=f"{size} weights: {words}")
    return Result(True, "Sixteen values a block, and most of them where most weights are.")


def rounded(weights: Tensor) -> Tensor:
    """What NF4 makes of weights [n], n a multiple of 64."""
    blocks = weights.view(-1, BLOCK)
    magnitudes = blocks.abs().amax(1, keepdim=True)
    levels = torch.tensor(LEVELS)
    nearest = ((blocks / magnitudes)[..., None] - levels).abs().argmin(-1)
    return (levels[nearest] * magnitudes).flatten()


def _look(found: Any, weights: Tensor) -> str:
    """What is wrong with the rounded weights; nothing where they are right."""
    if not isinstance(found, Tensor) or found.shape != weights.shape:
        return f"a tensor of shape {tuple(weights.shape)} is wanted."
    found, expected = found.detach().float(), rounded(weights)
    if torch.allclose(found, expected, atol=1e-5):
        return ""
    first = slice(0, BLOCK)
    if torch.allclose(found[first], expected[first], atol=1e-5):
        return "the first block is right; each block has a magnitude of its own."
    largest = weights[first].abs().argmax()
    if not torch.isclose(found[largest], weights[largest]):
        return "the largest weight of a block stays as it is: its level is 1 or -1."
    return "the levels that were chosen are not the nearest ones."


@cache
def gb_a_gpu() -> dict[str, float]:
    """GB of Falcon-40B's training state on each of four GPUs, by method."""
    config = load_config("falcon-40b")
    totals = {
        "full": state_bytes(parameters(model_shape(config)), "mixed").total,
        "lora": adapted_state(config, 64, base_bytes=2).total,
        "qlora": adapted_state(config, 64, quantize=True, base_bytes=2).total,
    }
    return {name: total / GPUS / 1e9 for name, total in totals.items()}


def which_fits(answer: Any) -> Result:
    """4c: {full, lora, qlora} in GB a GPU."""
    names = ("full", "lora", "qlora")
    if lacking := incomplete(answer, names):
        return lacking
    numbers = {name: number_of(answer[name]) for name in names}
    wrong = [
        name
        for name, value in gb_a_gpu().items()
        if numbers[name] is None or abs(numbers[name] / value - 1) > 0.02
    ]
    if wrong:
        return Result(words=f"Not right: {', '.join(wrong)}.")
    return Result(True, "Of 24 GB, one of the three leaves most for activations.")
