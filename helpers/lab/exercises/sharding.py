"""How the answers about sharded data parallelism are judged."""

from typing import Any

import torch

from helpers.engine.models.configurations import load_config
from helpers.lab.exercises.tensor import NOT_DONE, Result, incomplete, kind_of, number_of
from helpers.planner.cost import model_shape, money, parameters, state_bytes
from helpers.planner.published.posts import NEOX_SHARDED

GPU_BYTES, MOST_GPUS = 80e9, 4096
STAGES = {"ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}


def least_gpus(stage: int) -> int:
    """The fewest GPUs of 80 GB that hold GPT-NeoX-20B's state in mixed precision; 0 if none do."""
    count = parameters(model_shape(load_config("neox-20b")))
    for gpus in range(1, MOST_GPUS + 1):
        if state_bytes(count, "mixed", dp_shard=gpus, zero_stage=stage).total <= GPU_BYTES:
            return gpus
    return 0


def fewest_gpus(answer: Any) -> Result:
    """5a: by stage, the fewest GPUs on which the state fits; 0 where none are enough."""
    if lacking := incomplete(answer, STAGES):
        return lacking
    wrong = [name for name, stage in STAGES.items() if number_of(answer[name]) != least_gpus(stage)]
    if wrong:
        return Result(words=f"Not right: {', '.join(wrong)}.")
    return Result(True, "Only what is cut shrinks: whole parameters alone can be too much.")


def sharded_step(answer: Any) -> Result:
    """5b: the reader's sharded_step(weights, gradients, lr) against a step of plain descent."""
    if not callable(answer):
        return Result(words=f"A function is wanted, not {kind_of(answer)}.")
    for size, ranks in ((12, 4), (10, 4), (7, 2), (3, 4)):
        made = torch.Generator().manual_seed(size)
        weights = torch.randn(size, generator=made)
        gradients = [torch.randn(size, generator=made) for _ in range(ranks)]
        expected = weights - 0.1 * torch.stack(gradients).sum(0)
        try:
            found = answer(weights.clone(), [g.clone() for g in gradients], 0.1)
        except Exception as error:
            return Result(words=f"It raises {type(error).__name__}: {error}.")
        if found is None:
            return NOT_DONE
        words = _look(found, expected, ranks)
        if words:
            return Result(words=f"{size} weights on {ranks} ranks: {words}")
    return Result(True, "Each rank steps with its chunk alone, and together they are the whole.")


def _look(found: Any, expected: torch.Tensor, ranks: int) -> str:
    """What is wrong with the chunks; nothing where they are right."""
    if not isinstance(found, (list, tuple)) or len(found) != ranks:
        return f"a list with one chunk a rank is wanted, {ranks} of them."
    most = -(-len(expected) // ranks)
    longest = max(len(chunk) for chunk in found)
    if longest > most:
        return f"a rank holds {longest} weights; {most} are enough."
    whole = torch.cat(list(found))
    if len(whole) != len(expected):
        return f"the chunks are {len(whole)} weights together."
    if not torch.allclose(whole, expected, atol=1e-6):
        return "the values are not those of a step with the sum of all gradients."
    return ""


def published_bill(answer: Any) -> Result:
    """5c: {usd, gpu_hours, state_gb} of the published run."""
    run = NEOX_SHARDED
    count = parameters(model_shape(load_config(run.model)))
    expected = {
        "usd": money(run.train_s, run.price.usd_per_hour, run.instances),
        "gpu_hours": run.train_s / 3600 * run.devices,
        "state_gb": state_bytes(count, "mixed", dp_shard=run.devices).total / 1e9,
    }
    if lacking := incomplete(answer, expected):
        return lacking
    numbers = {key: number_of(answer[key]) for key in expected}
    wrong = [
        key
        for key, value in expected.items()
        if numbers[key] is None or abs(numbers[key] / value - 1) > 0.01
    ]
    if wrong:
        return Result(words=f"Not right: {', '.join(wrong)}.")
    return Result(True, f"{expected['usd']:.0f} dollars, {expected['gpu_hours']:.0f} GPU hours.")
