"""The fullest moment of a stretch of time, from what is held when it begins and what happens in it.

peak(Held(activations=10), [hold("transients", 5), free("activations", 10)])
# Held(gradients=0, activations=10, logits=0, transients=5)
"""

from collections.abc import Iterable
from typing import NamedTuple


class Held(NamedTuple):
    """Bytes of what comes and goes during a training step, by category.

    logits: the end of the model: the last norm, the head and the loss.
    transients: parameters that are gathered for a while, gradients on their way, messages between
        stages, and what one block's backward works with.
    """

    gradients: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    transients: float = 0.0


class Event(NamedTuple):
    """More bytes of a category, or fewer."""

    category: str
    change: float


def hold(category: str, size: float) -> Event:
    """From now on."""
    return Event(category, size)


def free(category: str, size: float) -> Event:
    """No longer."""
    return Event(category, -size)


def peak(start: Held, events: Iterable[Event]) -> Held:
    """What is held when most is: the first such moment."""
    now, fullest = start._asdict(), start
    now_bytes = most_bytes = sum(start)
    for category, change in events:
        now[category] += change
        now_bytes += change
        if now_bytes > most_bytes:
            most_bytes, fullest = now_bytes, Held(**now)
    return fullest
