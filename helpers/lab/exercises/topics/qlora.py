"""How the answers about adapters and 4-bit weights are judged."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from helpers.engine.adapters.nf4 import BLOCK
from helpers.engine.models.configurations import load_config
from helpers.lab.exercises.judges import (
    Expected,
    Result,
    judge_function,
    judge_numbers,
    kind_of,
    number_of,
)
from helpers.planner.cost import parameters
from helpers.planner.model.adapters import Adapters, adapted_state
from helpers.planner.shape.families import model_shape
from helpers.planner.shape.shape import Shape

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
GPU_BYTES = 24e9


def adapter_numbers(shape: Shape, rank: int) -> int:
    """How many numbers adapters beside Falcon's four linear layers have."""
    return shape.layers * Adapters(rank).parameters(shape)


def trainable_count(answer: Any) -> Result:
    """4a: how many numbers adapters of rank 16 train beside Falcon-7B."""
    number = number_of(answer)
    if number is None:
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
    praise = "Sixteen values a block, and most of them where most weights are."
    return judge_function(answer, _weights(), _look_at_rounded, praise)


def _weights() -> Iterator[tuple[Tensor]]:
    for size in (BLOCK, 8 * BLOCK):
        drawn = torch.randn(size, generator=torch.Generator().manual_seed(size))
        magnitudes = torch.linspace(2.0, 0.1, size)  # so that the blocks' largest ones differ
        yield (drawn * magnitudes,)


def rounded(weights: Tensor) -> Tensor:
    """What NF4 makes of weights [n], n a multiple of 64."""
    blocks = weights.view(-1, BLOCK)
    magnitudes = blocks.abs().amax(1, keepdim=True)
    levels = torch.tensor(LEVELS)
    nearest = ((blocks / magnitudes)[..., None] - levels).abs().argmin(-1)
    return (levels[nearest] * magnitudes).flatten()


def _look_at_rounded(answer: Any, weights: Tensor) -> str:
    where = f"{len(weights)} weights:"
    if not isinstance(answer, Tensor) or answer.shape != weights.shape:
        return f"{where} a tensor of shape {tuple(weights.shape)} is wanted."
    answer, expected = answer.detach().float(), rounded(weights)
    if torch.allclose(answer, expected, atol=1e-5):
        return ""
    first = slice(0, BLOCK)
    if torch.allclose(answer[first], expected[first], atol=1e-5):
        return f"{where} the first block is right; each block has a magnitude of its own."
    largest = weights[first].abs().argmax()
    if not torch.isclose(answer[largest], weights[largest]):
        return f"{where} the largest weight of a block stays as it is: its level is 1 or -1."
    return f"{where} the levels that were chosen are not the nearest ones."


@cache
def ranks_that_fit() -> dict[str, int]:
    """The largest rank of adapters with which Falcon-40B's state fits four GPUs, by method."""
    config = load_config("falcon-40b")
    largest = {}
    for name, quantize in {"lora": False, "qlora": True}.items():
        first, second = (
            adapted_state(config, rank, quantize=quantize, base_bytes=2).total for rank in (1, 2)
        )
        largest[name] = 1 + int((GPUS * GPU_BYTES - first) // (second - first))
    return largest


def largest_rank(answer: Any) -> Result:
    """4c: {lora, qlora}, the largest ranks that fit."""
    expected = {name: Expected(rank, tolerance=0) for name, rank in ranks_that_fit().items()}
    praise = "4 bits leave room for adapters more than five times as wide, or for activations."
    return judge_numbers("4c largest rank", answer, expected, praise)
