"""What the rules may look at: the looks so far, and the losses of all steps."""

from dataclasses import dataclass, field

from helpers.watch.limits import FULL_RATE
from helpers.watch.observe import Observation


@dataclass
class Watched:
    """One watched step: its line of metrics, what was observed, and its batch.

    padding: share of the batch that is padding.
    label: share of the samples that have the commonest label; None where there are no classes.
    scale: what the loss was multiplied by.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    seen: Observation
    padding: float = 0.0
    label: float | None = None
    scale: float = 1.0


@dataclass
class History:
    """Everything that the rules may look at.

    losses: by step, watched or not, in their order: from the one at which a run was resumed, and of
        those that have one: it is finite, and something in the batch has a label.
    held_out: (step, loss on the held-out data).
    first_loss: what random weights should start at, ln(vocabulary or classes); None for trained
        ones.
    """

    watched: list[Watched] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    held_out: list[tuple[int, float]] = field(default_factory=list)
    first_loss: float | None = None

    @property
    def last(self) -> Watched:
        return self.watched[-1]

    def at_full_rate(self) -> bool:
        """Does the learning rate rise no more since the look before, and is it half its largest?

        In a warm-up and at the end of a decay steps are small because they are meant to be.
        """
        rates = [one.lr for one in self.watched]
        if not rates:
            return True
        return len(rates) > 1 and rates[-2] >= rates[-1] >= FULL_RATE * max(rates)

    def steps_at_full_rate(self) -> int:
        """How many losses there are since the learning rate was first at its largest."""
        full = max(self.watched, key=lambda one: one.lr, default=None)
        return sum(full is None or step >= full.step for step in self.losses)
