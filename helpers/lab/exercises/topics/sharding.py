"""How the answers about sharded data parallelism are judged."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from helpers.engine.models.configurations import load_config
from helpers.lab.exercises.judges import Expected, Result, judge_function, judge_numbers
from helpers.planner.cost import parameters, state_bytes
from helpers.planner.published.posts import find_post
from helpers.planner.shape.families import model_shape
from helpers.planner.time.messages import SENT

GPU_BYTES, MOST_GPUS = 80e9, 4096
STAGES = {"ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3}
STEPS = ((12, 4), (10, 4), (7, 2), (3, 4))  # weights, ranks
LR = 0.1


def fewest_gpus(answer: Any) -> Result:
    """5a: by stage, the fewest GPUs on which the state fits; 0 where none are enough."""
    expected = {name: Expected(least_gpus(stage), tolerance=0) for name, stage in STAGES.items()}
    praise = "Only what is cut shrinks: whole parameters alone can be too much."
    return judge_numbers("5a fewest GPUs", answer, expected, praise)


def least_gpus(stage: int) -> int:
    """The fewest GPUs of 80 GB that hold GPT-NeoX-20B's state in mixed precision; 0 if none do."""
    count = parameters(model_shape(load_config("neox-20b")))
    for gpus in range(1, MOST_GPUS + 1):
        if state_bytes(count, "mixed", dp_shard=gpus, zero_stage=stage).total <= GPU_BYTES:
            return gpus
    return 0


def sharded_step(answer: Any) -> Result:
    """5b: the reader's sharded_step(weights, gradients, lr) against a step of plain descent."""
    praise = "A step needs a rank's own chunk alone, and together the chunks are the whole."
    return judge_function(answer, _steps(), _look_at_chunks, praise)


def _steps() -> Iterator[tuple[Tensor, list[Tensor], float]]:
    for size, ranks in STEPS:
        generator = torch.Generator().manual_seed(size)
        weights = torch.randn(size, generator=generator)
        yield weights, [torch.randn(size, generator=generator) for _ in range(ranks)], LR


def _look_at_chunks(chunks: Any, weights: Tensor, gradients: list[Tensor], lr: float) -> str:
    count, ranks = len(weights), len(gradients)
    where = f"{count} weights on {ranks} ranks:"
    if not isinstance(chunks, (list, tuple)) or len(chunks) != ranks:
        return f"{where} a list with one chunk a rank is wanted, {ranks} of them."
    most = -(-count // ranks)
    longest = max(len(chunk) for chunk in chunks)
    if longest > most:
        return f"{where} a rank holds {longest} weights; {most} are enough."
    whole = torch.cat(list(chunks))
    if len(whole) != count:
        return f"{where} the chunks are {len(whole)} weights together."
    if not torch.allclose(whole, weights - lr * torch.stack(gradients).sum(0), atol=1e-6):
        return f"{where} the values are not those of a step with the sum of all gradients."
    return ""


def as_on_the_slide(answer: Any) -> Result:
    """5c: {steps, state_gb, sent_gb} of the published run with the slide's settings."""
    run = find_post("neox-sharded")
    script, slide = run.settings, run.misstated
    epochs, batches = (int(slide[key]) / int(script[key]) for key in ("epochs", "batch of a GPU"))
    count = parameters(model_shape(load_config(run.model)))
    state = state_bytes(count, dp_shard=run.devices).total
    sent = 3 * 4 * count * SENT["all_gather"](run.devices)  # two gathers and a reduce-scatter
    expected = {
        "steps": Expected(epochs / batches),
        "state_gb": Expected(state / 1e9),
        "sent_gb": Expected(sent / 1e9),
    }
    praise = "float32 takes as much state as mixed precision, and larger messages."
    return judge_numbers("5c as on the slide", answer, expected, praise)
