"""5e: data parallelism whose sums are bucketed and begin while the backward still runs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.lab.exercises.on_ranks.judge import EMPTY, near, random
from helpers.lab.exercises.on_ranks.observed import sums_that_wait

RANKS, WIDTH, STEPS = 2, 8, 2
LAYERS = 7  # in buckets of two one is left over
LAYER_BYTES = 8 * WIDTH * WIDTH
BUCKET_BYTES = 2 * LAYER_BYTES


def exam(answer: Callable[..., Any]) -> str:
    """5e: overlap(model, bucket_bytes), in two steps of a model, each rank on data of its own."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).double()
    for number, parameter in enumerate(model.parameters()):
        parameter.data = random(WIDTH, WIDTH, seed=number) / WIDTH**0.5
    events: list[str] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))
    with sums_that_wait(lambda: events.append("sum")) as under_way:
        finish = answer(model, BUCKET_BYTES)
        if finish is None:
            return EMPTY
        if not callable(finish):
            return f"a function is to be returned, finish(), not a {type(finish).__name__}"
        for step in range(STEPS):
            events.clear()
            model.zero_grad()
            _loss(model, dist.get_rank(), step).backward()
            finish()
            if forgotten := sum(not one.waited for one in under_way):
                return f"{forgotten} sums were started and never waited for"
            if words := _of_gradients(model, step) or _of_order(events):
                return f"in step {step + 1}, {words}" if step else words
    return ""


def _loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(random(4, WIDTH, seed=100 + rank + RANKS * step)).square().mean()


def _of_gradients(model: nn.Module, step: int) -> str:
    found = [parameter.grad for parameter in model.parameters()]
    own = [
        torch.autograd.grad(_loss(model, rank, step), list(model.parameters()))
        for rank in range(RANKS)
    ]
    wanted = [torch.stack(gradients).mean(0) for gradients in zip(*own)]
    if all(map(near, found, wanted)):
        return ""
    if all(near(f, RANKS * w) for f, w in zip(found, wanted)):
        return f"the gradients are {RANKS} times the mean: divide the sum by the ranks"
    late = [n for n, (f, o) in enumerate(zip(found, own[dist.get_rank()])) if near(f, o)]
    if len(late) == len(found):
        return "every gradient is still the rank's own: are the sums waited for and copied back?"
    if late:
        layers = ", ".join(map(str, late))
        return f"the gradients of layers {layers} are the rank's own: the last bucket is not full"
    return "the gradients are not the mean over the ranks"


def _of_order(events: list[str]) -> str:
    sums = events.count("sum")
    most = -(-LAYERS * LAYER_BYTES // BUCKET_BYTES)
    if sums > most:
        return f"the gradients are right, by {sums} sums; buckets of two layers make {most}"
    if sums == 1 or "gradient" not in events[events.index("sum") :]:
        return (
            "the gradients are right, but no sum began before the backward was over: start each "
            "in the hook of the gradient that fills its bucket"
        )
    return ""
