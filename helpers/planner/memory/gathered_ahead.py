"""What ZeRO-3 gathers ahead in the backwards of a rank: what was used before, in the order of the
forwards. Where a rank has several stages, that may be blocks of another one, which then wait.

    gathered = GatheredAhead((True, True), rooted=False)    # two stages of several units each
    gathered.forward(0), gathered.forward(1)
    gathered.backward(1)        # 0: the last unit of the forward before

With a stage's first unit of blocks it is the last one of the forward before, whatever stage that
was of. Where the rank has a part of the model that is in no block, every forward ends with that
part: it comes before a first unit, and is there; and with it comes the last unit of the latest
forward. Held against torch's fully_shard in tests/planner/memory/test_gathered_ahead.py.
"""

from helpers.engine.memory.recomputing import group_size
from helpers.planner.model.training_job import Job


def several_units(job: Job, rank: int, rooted: bool) -> tuple[bool, ...]:
    """Of each stage, has it several units of blocks? Nothing where none is gathered ahead."""
    stages = job.stages_of(rank)
    if job.plan.zero != 3 or (rooted and len(stages) == 1):
        return ()
    size = group_size(job.plan.activation)
    return tuple(job.layers[stage] > size for stage in stages)


class GatheredAhead:
    """Of one rank, forward by forward and backward by backward.

    Args:
        several: of each stage, has it several units? Of none where nothing is gathered so.
        rooted: has the rank such a part?

    Attributes:
        waiting: of each stage, was its last unit gathered so, and waits?
    """

    def __init__(self, several: tuple[bool, ...], rooted: bool) -> None:
        self.several, self.rooted = several, rooted
        self.waiting = [False] * len(several)
        self.forwards: list[int] = []  # the places of their stages
        self.own: list[list[int]] = [[] for _ in several]  # which of them were a stage's

    def uses(self, place: int) -> None:
        """A stage computes with its blocks."""
        if self.several:
            self.waiting[place] = False

    def forward(self, place: int) -> None:
        if not self.several:
            return
        self.own[place].append(len(self.forwards))
        self.forwards.append(place)

    def backward(self, place: int) -> int:
        """The place of the stage that is gathered, or -1. Of two forwards that wait, the latest
        counts, whichever is on its way back."""
        if not self.several:
            return -1
        before = self.forwards.pop() if self.rooted else self._before(place)
        held = before == place and (self.rooted or not self.several[place])
        if before < 0 or held or self.waiting[before]:
            return -1
        self.waiting[before] = True
        return before

    def _before(self, place: int) -> int:
        number = self.own[place].pop()
        return self.forwards[number - 1] if number else -1
