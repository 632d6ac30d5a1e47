"""Rules over the losses of a run: where they do not fall, and where they say that it began badly.

A mean of losses is known up to its noise, which is that of the losses over the root of their
number. So a loss stands still where no fall is seen beyond the noise, and the noise leaves no room
for one that counts: small batches need more steps for it than large ones.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from helpers.watch.history import History
from helpers.watch.limits import (
    EARLIER,
    FALL,
    FLAT_STEPS,
    INITIAL,
    LITTLE,
    NOISE,
    OVERFIT,
    RISE,
    ROOM,
    SEEN,
    SLOW_STEPS,
    SLOW_STEPS_OF_RANDOM_WEIGHTS,
    TREND,
)


def poor_initialisation(history: History) -> str | None:
    """The first loss of random weights is over 1.5 times ln(vocabulary or classes)."""
    right, first = history.first_loss, next(iter(history.losses.values()), None)
    if right is None or first is None or not first > INITIAL * right:
        return None
    near = f"ln(vocabulary or classes) {right:.3g}"
    return f"the first loss is {first:.3g}; of random weights it is near {near}"


def loss_not_falling(history: History) -> str | None:
    """Beyond its noise, the loss is as at first, is flat for half of the run, or rose by 20 %."""
    return _not_fallen(history) or _risen(history) or _flat(history)


def _not_fallen(history: History) -> str | None:
    """After 60 steps at the full learning rate, the last third is no lower than the first."""
    losses = list(history.losses.values())
    if history.steps_at_full_rate() < 3 * TREND or _just_resumed(history):
        return None
    third = len(losses) // 3
    first, last = losses[:third], losses[-third:]
    slow = SLOW_STEPS if history.first_loss is None else SLOW_STEPS_OF_RANDOM_WEIGHTS
    if not stands_still(first, last, FALL * min(1, len(losses) / slow)):
        return None
    said = f"the loss was {fmean(first):.4g} at first and is {fmean(last):.4g}"
    return f"{said} after {len(losses)} steps"


def _flat(history: History) -> str | None:
    """The last half of the steps at the full learning rate, 1000 at least, are no slope."""
    steps = history.steps_at_full_rate() // 2
    if steps < FLAT_STEPS or not history.at_full_rate() or _just_resumed(history):
        return None
    losses = list(history.losses.values())[-steps:]
    before, after = losses[: steps // 2], losses[steps // 2 :]
    if fmean(losses) < LITTLE or not stands_still(before, after, FALL):
        return None
    return f"the loss is {fmean(losses):.4g}, and has not fallen for {steps} steps"


def _just_resumed(history: History) -> bool:
    """Are more steps behind this run than it took? The later a step, the less the loss falls."""
    return len(history.losses) < max(history.losses, default=0) / 2


def _risen(history: History) -> str | None:
    """Of the means of 20 steps the last three are over a fifth above the least before them."""
    steps, losses = list(history.losses), list(history.losses.values())
    starts = range(len(losses) % TREND, len(losses), TREND)
    parts = [losses[start : start + TREND] for start in starts]
    means = [fmean(part) for part in parts]
    if len(means) < 3 + 1:
        return None
    best = min(range(len(means) - 3), key=means.__getitem__)
    noise = median(abs(b - a) for part in parts for a, b in pairwise(part)) / math.sqrt(TREND)
    now = min(means[-3:])
    if now <= (1 + RISE) * means[best] + LITTLE + NOISE * noise:
        return None
    step = steps[starts[best] + TREND - 1]
    return f"the loss was {means[best]:.4g} up to step {step}, and is {now:.4g} or more since"


def overfitting(history: History) -> str | None:
    """The held-out loss is 5 % above its least, and the training loss has fallen since."""
    held_out = [one for one in history.held_out if math.isfinite(one[1])]
    if len(held_out) < EARLIER:
        return None
    (_, now), (best_step, best) = held_out[-1], min(held_out, key=lambda one: one[1])
    begin = best_step - TREND // 2
    trained = [loss for step, loss in history.losses.items() if step > begin][:TREND]
    lately = list(history.losses.values())[-TREND // 2 :]
    if not now > OVERFIT * best or not trained or fmean(lately) >= fmean(trained):
        return None
    return f"the held-out loss is {now:.4g} and was {best:.4g} at step {best_step}: stop there"


def stands_still(before: Sequence[float], after: Sequence[float], counts: float) -> bool:
    """Is a fall from `before` to `after` not seen, and one of the share `counts` shut out?"""
    (first, one), (last, other) = _mean(before), _mean(after)
    noise = math.sqrt(one + other)
    fall = first - last
    return fall <= SEEN * noise and fall + ROOM * noise <= counts * abs(first)


def _mean(losses: Sequence[float]) -> tuple[float, float]:
    """The mean of losses, and its variance."""
    mean = fmean(losses)
    return mean, sum((loss - mean) ** 2 for loss in losses) / len(losses) / (len(losses) - 1)
