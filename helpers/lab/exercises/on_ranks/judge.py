"""How an answer is judged on real ranks: by an exam that each of them runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from helpers.lab.calls.on_ranks import CallFailed, on_ranks
from helpers.lab.exercises.judges import NOT_DONE, Result, kind_of
from helpers.lab.launch.warm.ranks import Ranks

DEADLOCK_S = 5.0
EMPTY = "nothing was returned"  # by the stub, too

Exam = Callable[[Any], str]  # in a rank: what is wrong with the answer, or nothing


def judge_on_ranks(
    answer: Any, exam: Exam, nproc: int, praise: str, ranks: Ranks | None = None
) -> Result:
    """Run the exam on `nproc` ranks; what the first rank that saw something wrong says of it.

    Args:
        answer: handed to the exam in every rank, by value.
        praise: what to say where no rank saw anything wrong.
        ranks: warm ranks, on which an exam takes a second; else it starts its own in ten.
    """
    if isinstance(answer, tuple) and all(part is None for part in answer):
        return NOT_DONE  # the stub of a pair, for which no rank need start
    if not callable(answer) and not isinstance(answer, tuple):
        words = f"A function is wanted, or a pair if the question says so, not {kind_of(answer)}."
        return Result(words=words)
    try:
        seen = on_ranks(exam, answer, nproc=nproc, ranks=ranks, timeout_s=DEADLOCK_S)
    except CallFailed as failed:
        return Result(words=f"{failed.message[0].upper()}{failed.message[1:]}.")
    return verdict(seen, praise)


def verdict(seen: list[str], praise: str) -> Result:
    """What the ranks saw, by rank, as one result."""
    if all(words == EMPTY for words in seen):
        return NOT_DONE
    wrong = [f"On rank {rank}, {words}." for rank, words in enumerate(seen) if words]
    return Result(words=wrong[0]) if wrong else Result(True, praise)


def near(found: Any, wanted: Tensor) -> bool:
    """A tensor of the same shape and, but for rounding, the same numbers."""
    return (
        isinstance(found, Tensor)
        and found.shape == wanted.shape
        and torch.allclose(found.detach().to(wanted), wanted, rtol=1e-8, atol=1e-10)
    )


def wrong_kind(found: Any, wanted: Tensor) -> str:
    """What to say of something that is not even a tensor of the right shape."""
    if found is None:
        return EMPTY
    if not isinstance(found, Tensor):
        return f"a tensor is wanted, not a {type(found).__name__}"
    if found.shape != wanted.shape:
        return f"the shape is {list(found.shape)} where {list(wanted.shape)} is wanted"
    return ""


def random(*shape: int, seed: int = 0) -> Tensor:
    """The same numbers on every rank, in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
