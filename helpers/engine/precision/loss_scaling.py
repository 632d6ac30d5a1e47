"""Dynamic loss scaling for fp16, whose smallest number is too large for many gradients.

The loss is multiplied by a scale before the backward pass and the gradients are divided by it
after. A gradient that overflows makes the norm infinite or not a number; the norm is a sum over
all ranks, so all of them see it alike, skip the step and halve the scale. Without a scale to halve
the step is skipped as well: a number that is not finite must not get into the weights.

Source: Micikevicius et al. 2018, Mixed Precision Training, section 3.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

COUNTS = ("skipped", "bad_steps")  # go on whatever the scale
MOST_BAD_STEPS = 3  # in a row, after which a run has diverged


@dataclass
class LossScaler:
    """The scale and how it moves.

    Attributes:
        scale: what the loss is multiplied by; 1 where no scaling is wanted.
        growth_interval: steps without overflow after which the scale doubles; 0 keeps it fixed.
        skipped: steps that were left out.
        bad_steps: of these, how many in a row up to now could not be mended by a smaller scale.
    """

    scale: float = 1.0
    growth_interval: int = 0
    good_steps: int = 0
    skipped: int = 0
    bad_steps: int = 0

    @classmethod
    def for_precision(cls, precision: str) -> "LossScaler":
        return cls(2.0**16, growth_interval=1000) if precision == "fp16" else cls()

    def go_on(self, saved: Mapping[str, float], before: str, now: str) -> None:
        """Take over what a checkpoint says. The scale itself only where that run, of precision
        `before`, was scaled as this one of precision `now`: fp16 needs one, the others have none.
        """
        alike = self.for_precision(before) == self.for_precision(now)
        names = {field.name for field in fields(self)} if alike else COUNTS
        for name, value in saved.items():
            if name in names:
                setattr(self, name, value)

    def overflowed(self, finite: bool) -> bool:
        """Take note of whether a step's loss and gradient are finite; True says to skip it."""
        if not finite:
            self.bad_steps = self.bad_steps + 1 if self.scale <= 1 else 0
            self.scale = max(min(self.scale, 1.0), self.scale / 2)
            self.good_steps = 0
            self.skipped += 1
            return True
        self.bad_steps = 0
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale, self.good_steps = self.scale * 2, 0
        return False
