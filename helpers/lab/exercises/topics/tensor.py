"""How the answers about tensor parallelism are judged: by the planner's formulas and by torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.engine.models.configurations import load_config
from helpers.lab.exercises.judges import (
    NOT_DONE,
    READERS_ERRORS,
    Expected,
    Result,
    judge_numbers,
    kind_of,
    mistake,
    near,
    no_function,
    number_of,
    raised,
)
from helpers.planner.cost import mfu, money, train_flops_per_token
from helpers.planner.hardware.lookup import find_gpu, find_instance
from helpers.planner.published.posts import find_post
from helpers.planner.shape.families import model_shape
from helpers.planner.time.tensor_messages import tensor_traffic

LossFunction = Callable[[list[Tensor], Tensor], Tensor]

# tokens, width of a shard, ranks, and how large the logits are
LOSSES = ((7, 5, 2, 1.0), (16, 3, 4, 3.0), (9, 4, 3, 300.0))


def traffic(answer: Any) -> Result:
    """1a: bytes that GPT-J-6B's blocks all-reduce in a step at tp=8, batch 8 x 1024, bf16."""
    number = number_of(answer)
    if number is None:
        return Result(words=f"A number of bytes is wanted, not {kind_of(answer)}.")
    shape = model_shape(load_config("gptj-6b"))
    expected = tensor_traffic(shape, 8, 1024, tp=8, precision="bf16")
    if near(number, expected.blocks):
        layers = f"{shape.layers} layers, one sum forward and one backward each"
        return Result(True, f"{number:,.0f} bytes: {layers}.")
    if near(number, expected.total):
        return Result(words="That is the blocks with embedding, head and loss; leave these out.")
    return Result(words=mistake("1a traffic", number / expected.blocks))


def audit_of_the_published_run(answer: Any) -> Result:
    """1c: {mfu, usd, training_share} of the published GPT-J run."""
    run = find_post("gptj-tensor-parallel")
    peak = find_gpu(find_instance(run.instance).gpu).peak_flops[run.dtype]
    tokens_per_s, flops = run.steady_samples_per_s * run.seq_len, 6 * run.parameters
    reached = mfu(tokens_per_s, flops, run.devices, peak)
    with_attention = train_flops_per_token(model_shape(load_config(run.model)), run.seq_len)
    share = run.train_s / run.billed_s
    start_s = run.timeline_s["start the machine"]
    of_held = run.timeline_s["train"] / (start_s + run.billed_s)
    usd = money(run.billed_s, run.price.usd_per_hour, run.instances)
    expected = {
        "mfu": Expected(reached, also=reached * with_attention / flops),
        "usd": Expected(usd),
        # the log's own time stamps say 62 s, its count of steps 63 s
        "training_share": Expected(share, tolerance=0.03),
    }
    praise = (
        f"{reached:.1%} of what the chips can do, during {share:.1%} of the billed time, and "
        f"{of_held:.1%} of the time for which the machine was held: the {start_s:.0f} s in which "
        "it started were not billed."
    )
    return judge_numbers("1c audit", answer, expected, praise)


def vocabulary_loss(answer: Any) -> Result:
    """1b: the reader's loss(shards, targets) against torch's, on random shards."""
    if not callable(answer):
        return no_function(answer)
    generator = torch.Generator().manual_seed(0)
    for tokens, width, ranks, scale in LOSSES:
        logits = scale * torch.randn(tokens, width * ranks, generator=generator)
        targets = torch.randint(width * ranks, (tokens,), generator=generator)
        wrong = _try_loss(answer, logits, targets, ranks)
        if wrong is not None:
            return wrong
    return Result(True, "Loss and gradients are torch's, on 2, 3 and 4 shards, large logits too.")


def _try_loss(loss: LossFunction, logits: Tensor, targets: Tensor, ranks: int) -> Result | None:
    """None where the reader's function is right on these logits."""
    shards = [part.clone().requires_grad_() for part in logits.chunk(ranks, dim=1)]
    whole = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(whole, targets)
    expected.backward()
    try:
        with _LargestTensor() as seen:
            mean = loss(shards, targets)
        if mean is None:
            return NOT_DONE
        if words := _look(mean, expected, logits):
            return Result(words=words)
        mean.backward()
    except READERS_ERRORS as error:
        return Result(words=f"It {raised(error)}.")
    if seen.elements >= logits.numel():
        return Result(words="A tensor as large as all logits together was made.")
    gradients = torch.cat([_gradient(shard) for shard in shards], dim=1)
    if not torch.allclose(gradients, whole.grad, rtol=1e-4, atol=1e-6):
        return Result(words="The loss is right, its gradient is not: is a part of it detached?")
    return None


def _look(mean: Any, expected: Tensor, logits: Tensor) -> str:
    """What is wrong with a loss; nothing where it is right."""
    if not isinstance(mean, Tensor) or mean.dim() != 0:
        return f"A single number in a tensor is wanted, not {kind_of(mean)}."
    if not torch.isfinite(mean):
        return f"The loss is {mean.item()} where logits reach {logits.abs().max().item():.0f}."
    if not torch.allclose(mean.detach().to(expected), expected, rtol=1e-4, atol=1e-5):
        return "The loss is not that of the whole vocabulary."
    return ""


def _gradient(shard: Tensor) -> Tensor:
    return torch.zeros_like(shard) if shard.grad is None else shard.grad


class _LargestTensor(TorchDispatchMode):
    """Watches for the largest tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result
