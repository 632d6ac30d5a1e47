"""A step's forward and backward taken twice: what is not the same twice is not sound.

A processor or a memory that errs now and then gives a wrong number and no error: among thousands of
devices some do, and a run trains on what they say. The same batch, weights and random numbers must
give the same bits. A checksum of each gradient is kept of the first pass, not the gradient itself.

Sources: Dixit et al. 2021, Silent Data Corruptions at Scale; Llama Team 2024, The Llama 3 Herd of
Models, section 3.3.4, which counts 6 interruptions by silent data corruption in 54 days.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..errors import NotRepeatable
from ..ranks import over_ranks

Pass = Callable[[], tuple[Tensor, dict[str, Tensor]]]  # a pass gives its loss and its gradients
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number


def twice(take: Pass, step: int, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and gradients of the second of two passes, once both agree. Every rank calls it.

    Args:
        take: one pass; it must leave weights as they are and take its gradients along.
        step: for the error's words.
        model: whose buffers begin both alike, for a pass may change some, as a running mean.

    Raises:
        NotRepeatable: a bit differs on some rank; on every rank, in the same words.
    """
    streams = random_streams()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss, gradients = take()
    first = checksums(loss, gradients)
    del gradients
    set_random_streams(streams)
    for name, before in buffers.items():
        model.get_buffer(name).copy_(before)
    loss, gradients = take()
    second = checksums(loss, gradients)
    differing = [name for name in first if first[name] != second.get(name)]
    by_rank = over_ranks(differing[:1])
    for rank, names in enumerate(by_rank):
        if names:
            raise NotRepeatable(
                f"step {step}: two passes over the same batch differ, first in {names[0]} on rank "
                f"{rank}: a device's memory or arithmetic is not sound; nothing was trained on it, "
                "go on from the last checkpoint on other machines"
            )
    return loss, gradients


def checksums(loss: Tensor, gradients: Mapping[str, Tensor]) -> dict[str, int | str]:
    """By what they are of. Any one bit that flips in a gradient changes the sum of its words."""
    sums = {f"the gradient of {name}": _sum_of_words(one) for name, one in gradients.items()}
    whole = torch.stack(list(sums.values())).tolist() if sums else []
    return dict(zip(sums, whole)) | {"the loss": float.hex(loss.item())}


def _sum_of_words(numbers: Tensor) -> Tensor:
    words = numbers.detach().contiguous().view(WORDS[numbers.element_size()])
    return words.sum(dtype=torch.int64)


def random_streams() -> dict[str, Tensor]:
    """Where this rank's random numbers stand."""
    streams = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # not by asking: a rank on the CPU holds no GPU memory
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def set_random_streams(streams: dict[str, Tensor]) -> None:
    torch.set_rng_state(streams["cpu"])
    if "cuda" in streams and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(streams["cuda"])
