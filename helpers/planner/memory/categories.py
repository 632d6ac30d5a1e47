"""What a rank holds at its fullest moment, by what it is for.

memory.activations, memory.allocated, memory.total
"""

from dataclasses import dataclass

from helpers.planner.hardware.devices import CONTEXT_BYTES

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "logits", "transients")
# of what is allocated, for freed pieces too small to use: 5 to 10 % where it was measured
FRAGMENTS = 0.06


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its fullest moment, by category.

    logits, transients: as of timeline.Held.
    context: what the device's libraries take. host: activations that are in host memory instead.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transients: float
    context: float = CONTEXT_BYTES
    host: float = 0.0

    @property
    def states(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def by_category(self) -> dict[str, float]:
        """Bytes on the device of what is allocated."""
        return {name: getattr(self, name) for name in CATEGORIES}

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated counts."""
        return self.states + self.activations + self.logits + self.transients

    @property
    def reserved(self) -> float:
        """What torch.cuda.max_memory_reserved counts: with the allocator's fragments."""
        return self.allocated * (1 + FRAGMENTS)

    @property
    def total(self) -> float:
        """With the context, too: what the device must have."""
        return self.reserved + self.context
