"""How each answer is judged: against the planner's formulas and torch, not numbers kept here."""

import math
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.engine.models.configurations import load_config
from helpers.planner.cost import (
    mfu,
    model_shape,
    money,
    tensor_parallel_traffic_bytes,
    train_flops_per_token,
)
from helpers.planner.hardware.lookup import find_gpu, find_instance
from helpers.planner.published.posts import GPTJ_TENSOR_PARALLEL


@dataclass(frozen=True)
class Result:
    """`done`: there is an answer to judge. `words`: what was seen, without the answer."""

    right: bool = False
    words: str = ""
    done: bool = True


NOT_DONE = Result(done=False)

# How far off a known mistake lands: answer / expected, and what to say.
TRAFFIC_SLIPS = {
    0.5: "Half of it: one direction, or half the bytes of a number.",
    2.0: "Twice too much: two sums a layer, fp32 numbers, or both ends of a message.",
    4.0: "Four times too much.",
    1 / 8: "An eighth: a message is not divided by tp. Each rank sends a sum of full size.",
    1 / 28: "That is one layer's.",
    7 / 4: "That is what each rank puts on the wire, 2(n-1)/n of it; count each message once.",
    1e-9: "That looks like gigabytes: answer in bytes.",
}
MFU_SLIPS = {
    8.0: "Eight times too much: the rate is that of all 8 devices together.",
    32 / 3: "That is the printed rate: one chip's peak, and 8·N with recomputed work.",
    4 / 3: "8·N counts the recomputed forward: that is hardware utilisation, not the model's.",
    0.5: "Half of it: the peak with sparsity is not the dense one.",
    100.0: "That is per cent: answer between 0 and 1.",
}
USD_SLIPS = {
    8.0: "Eight times too much: the price is for the instance, all its GPUs included.",
    GPTJ_TENSOR_PARALLEL.train_s / GPTJ_TENSOR_PARALLEL.billed_s: (
        "That pays for the training alone; the bill runs from start to upload."
    ),
    3600.0: "The price is by the hour.",
}
SHARE_SLIPS = {100.0: "That is per cent: answer between 0 and 1."}


def traffic(answer: Any) -> Result:
    """1a: bytes that GPT-J-6B's blocks all-reduce in a step at tp=8, batch 8 x 1024, bf16."""
    shape = model_shape(load_config("gptj-6b"))
    expected = tensor_parallel_traffic_bytes(shape, 8, 1024, tp=8, element_bytes=2)
    if (number := number_of(answer)) is None:
        return Result(words=f"A number of bytes is wanted, not {kind_of(answer)}.")
    if near(number, expected.blocks):
        layers = f"{shape.layers} layers, one sum forward and one backward each"
        return Result(True, f"{number:,.0f} bytes: {layers}.")
    if near(number, expected.total):
        return Result(words="That is the blocks with embedding, head and loss; leave these out.")
    return Result(words=slip(number / expected.blocks, TRAFFIC_SLIPS))


def vocabulary_loss(answer: Any) -> Result:
    """1b: the reader's loss(shards, targets) against torch's, on random shards."""
    if not callable(answer):
        return Result(words=f"A function is wanted, not {kind_of(answer)}.")
    generator = torch.Generator().manual_seed(0)
    for tokens, width, ranks, scale in ((7, 5, 2, 1.0), (16, 3, 4, 3.0), (9, 4, 3, 300.0)):
        logits = scale * torch.randn(tokens, width * ranks, generator=generator)
        targets = torch.randint(width * ranks, (tokens,), generator=generator)
        result = _try_loss(answer, logits, targets, ranks)
        if result is not None:
            return result
    return Result(True, "Loss and gradients are torch's, on 2, 3 and 4 shards, large logits too.")


def audit_of_the_published_run(answer: Any) -> Result:
    """1c: {mfu, usd, training_share} of the published GPT-J run."""
    expected = {
        "mfu": (_published_mfu(), MFU_SLIPS, 0.01),
        "usd": (_published_usd(), USD_SLIPS, 0.01),
        # the log's own time stamps say 62 s, its count of steps 63 s
        "training_share": (_published_share(), SHARE_SLIPS, 0.03),
    }
    if lacking := incomplete(answer, expected):
        return lacking
    wrong = []
    for key, (value, slips, tolerance) in expected.items():
        number = number_of(answer[key])
        if number is None:
            wrong.append(f"{key} is not a number.")
        elif not near(number, value, tolerance) and not _attention_counted(key, number):
            wrong.append(f"{key} is not right. {slip(number / value, slips)}".strip())
    if wrong:
        return Result(words=" ".join(wrong))
    share = f"{_published_share():.1%} of the bill"
    return Result(True, f"{_published_mfu():.1%} of what the chips can do, during {share}.")


def _published_mfu() -> float:
    run = GPTJ_TENSOR_PARALLEL
    peak = find_gpu(find_instance(run.instance).gpu).peak_flops[run.dtype]
    return mfu(run.steady_samples_per_s * run.seq_len, 6 * run.parameters, run.devices, peak)


def _published_usd() -> float:
    run = GPTJ_TENSOR_PARALLEL
    return money(run.billed_s, run.price.usd_per_hour, run.instances)


def _published_share() -> float:
    return GPTJ_TENSOR_PARALLEL.train_s / GPTJ_TENSOR_PARALLEL.billed_s


def _attention_counted(key: str, number: float) -> bool:
    """Whether an MFU counts the attention scores too: 6·N + 12·layers·width·seq is as right."""
    if key != "mfu":
        return False
    run = GPTJ_TENSOR_PARALLEL
    flops = train_flops_per_token(model_shape(load_config(run.model)), run.seq_len)
    return near(number, _published_mfu() * flops / (6 * run.parameters), 0.01)


def _try_loss(
    loss: Callable[[list[Tensor], Tensor], Tensor], logits: Tensor, targets: Tensor, ranks: int
) -> Result | None:
    """None where the reader's function is right on these logits."""
    shards = [part.clone().requires_grad_() for part in logits.chunk(ranks, dim=1)]
    whole = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(whole, targets)
    expected.backward()
    try:
        with _LargestTensor() as seen:
            found = loss(shards, targets)
        if found is None:
            return NOT_DONE
        if not isinstance(found, Tensor) or found.dim() != 0:
            return Result(words=f"A single number in a tensor is wanted, not {kind_of(found)}.")
        if not torch.isfinite(found):
            return Result(words=f"The loss is {found.item()} where logits reach {_most(logits)}.")
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
            return Result(words="The loss is not that of the whole vocabulary.")
        found.backward()
    except Exception as error:  # the reader's code: whatever it raises is shown to them
        where = traceback.extract_tb(error.__traceback__)[-1].lineno
        return Result(words=f"It raised {type(error).__name__}: {error} (line {where}).")
    if seen.elements >= logits.numel():
        return Result(words="A tensor as large as all logits together was made.")
    gradients = torch.cat([_gradient(shard) for shard in shards], dim=1)
    if not torch.allclose(gradients, whole.grad, rtol=1e-4, atol=1e-6):
        return Result(words="The loss is right, its gradient is not: is a part of it detached?")
    return None


class _LargestTensor(TorchDispatchMode):
    """Watches for the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def _gradient(shard: Tensor) -> Tensor:
    return torch.zeros_like(shard) if shard.grad is None else shard.grad


def _most(logits: Tensor) -> str:
    return f"{logits.abs().max().item():.0f}"


def number_of(value: Any) -> float | None:
    """The value as a finite number, or None; a tensor or array of one element is one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def near(number: float, expected: float, tolerance: float = 0.005) -> bool:
    return math.isclose(number, expected, rel_tol=tolerance)


def slip(ratio: float, slips: dict[float, str]) -> str:
    """What to say of a known mistake, by how far off the answer is."""
    return next((words for known, words in slips.items() if near(ratio, known, 0.02)), "")


def incomplete(answer: Any, keys: Collection[str]) -> Result | None:
    """What to say while the dictionary that is wanted is not whole; None where it is."""
    if not isinstance(answer, Mapping):
        return Result(words=f"A dictionary is wanted, not {kind_of(answer)}.")
    missing = [key for key in keys if answer.get(key) is None]
    if len(missing) == len(keys):
        return NOT_DONE
    return Result(words=f"There is no {missing[0]!r} in the answer yet.") if missing else None


def kind_of(value: Any) -> str:
    """What an answer is, in words."""
    return f"a {type(value).__name__}"
