"""The largest batch that fits, and the learning rate that goes with it.

    tries = find_batch("scripts/train.py", model="gpt2-tiny", seq_len=128, out="runs/batches")
    show_table(tries.table, tries.sentence)
    lr = scaled_lr(1e-3, tries.batch_size, base_batch_size=32, rule="sqrt")

Each size is tried in processes of their own, for two steps: the second has the optimizer's state.
What runs out of memory takes its processes with it and nothing else, so the next size starts clean.
Sizes double from the first guess until one does not fit, and are then halved in between.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.engine.errors import UserError, check_count, is_number
from helpers.lab.figures.tables import table_of
from helpers.lab.launch.launch import launch
from helpers.lab.paths import check_out, unused
from helpers.lab.runs.failure_report import RunFailed

if TYPE_CHECKING:
    import pandas as pd

STEPS = 2
LARGE = 1e18  # far beyond any batch
FULL = (  # what a rank says whose memory is full
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "MemoryError",
    "signal 9",  # the kernel ends what takes too much of the machine's
)
RULES: dict[str, Callable[[float], float]] = {"linear": lambda r: r, "sqrt": math.sqrt}


@dataclass(frozen=True)
class Try:
    """One size, and whether it fits."""

    batch_size: int
    fits: bool
    words: str


@dataclass(frozen=True)
class Tries:
    """The sizes that were tried, in order."""

    tries: tuple[Try, ...]

    @property
    def batch_size(self) -> int:
        """The largest that fits."""
        return max(attempt.batch_size for attempt in self.tries if attempt.fits)

    @property
    def table(self) -> "pd.DataFrame":
        rows = {
            attempt.batch_size: {"fits": attempt.fits, "what it said": attempt.words}
            for attempt in self.tries
        }
        return table_of(rows, "batch")

    @property
    def sentence(self) -> str:
        larger = [attempt.batch_size for attempt in self.tries if not attempt.fits]
        end = f"; {min(larger)} does not" if larger else ", and nothing larger was tried"
        return f"A batch of {self.batch_size} fits{end}."


def find_batch(
    script: str | Path,
    *,
    first: int = 8,
    most: int = 4096,
    step: int = 1,
    limit_bytes: float = math.inf,
    out: str | Path,
    **flags: Any,
) -> Tries:
    """Try batches until the largest that fits is known.

    Args:
        first: the first size to try: a prediction, where there is one (planner.estimate).
        most: no size above it is tried.
        step: sizes are multiples of this: the number of data ranks, or of micro-batches.
        limit_bytes: a rank whose peak is above it counts as full: for machines that other programs
            use too, where nothing runs out before everything stands still.
        out: folder of the tries' folders.
        flags: of the script and of `launch`.

    Raises:
        UserError: not even the smallest size fits, or the sizes make no sense.
        RunFailed: a try failed for another reason than memory.
    """
    for name, value in (("first", first), ("most", most), ("step", step)):
        check_count(name, value)
    if not is_number(limit_bytes) or not limit_bytes > 0:
        raise UserError(f"limit_bytes is {limit_bytes!r:.40}: give a number of bytes above 0")
    check_out(out)
    if taken := sorted({"batch_size", "steps", "show"} & flags.keys()):
        raise UserError(f"{taken[0]} is chosen by the search itself: leave it out")
    if not 1 <= step <= first <= most:
        raise UserError(f"first={first} must lie between step={step} and most={most}")
    tries: list[Try] = []

    def fits(units: int) -> bool:
        print(f"try {len(tries) + 1}: a batch of {units * step} ...", end=" ", flush=True)
        began = time.monotonic()
        tries.append(_try(script, units * step, limit_bytes, Path(out), flags))
        print(f"{tries[-1].words}, {time.monotonic() - began:.0f} s", flush=True)
        return tries[-1].fits

    search(fits, first // step, most // step)
    if not any(attempt.fits for attempt in tries):
        raise UserError(f"not even a batch of {step} fits: {tries[-1].words}")
    return Tries(tuple(tries))


def search(fits: Callable[[int], bool], first: int, most: int) -> int:
    """The largest number from 1 to `most` that fits, 0 where none does, if all below one that fits
    fit: by doubling or halving from `first`, then bisection."""
    low, high = 0, most + 1  # fits; does not
    size = first
    while low < size < high:
        if fits(size):
            low = size
            size = min(2 * size, most)
        else:
            high = size
            size = size // 2
        if low and high <= most:
            size = (low + high) // 2
    return low


def _try(
    script: str | Path, batch_size: int, limit_bytes: float, out: Path, flags: dict[str, Any]
) -> Try:
    folder = unused(f"{out}/batch-{batch_size}")
    try:
        run = launch(script, out=folder, show=False, **flags, batch_size=batch_size, steps=STEPS)
    except RunFailed as failure:
        words = failure.message.splitlines()[0]
        if not any(word.lower() in str(failure).lower() for word in FULL):
            raise
        return Try(batch_size, False, words)
    peak = max(run.summary["peak_memory_bytes"])
    return Try(batch_size, peak <= limit_bytes, f"peak {peak / 1e9:.2f} GB")


def scaled_lr(lr: float, batch_size: int, base_batch_size: int, rule: str) -> float:
    """The learning rate for another batch.

    Args:
        rule: `linear`, for gradient descent (Goyal et al. 2017, section 2.1); `sqrt`, for Adam and
            its kin (Malladi et al. 2022, section 5).

    Raises:
        UserError: there is no such rule, or a number is not above 0.
    """
    if not isinstance(rule, str) or rule not in RULES:
        raise UserError(f"no rule {rule!r}; there is: {', '.join(RULES)}")
    for number in (lr, batch_size, base_batch_size):
        if not is_number(number) or not 0 < number < LARGE:
            raise UserError("learning rate and batches must be numbers above 0")
    return lr * RULES[rule](batch_size / base_batch_size)
