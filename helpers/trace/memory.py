"""What a step's memory is taken by, from the blocks that its trace saw come and go.

    use = memory_of_step(trace)
    use.peak                      # {"activations": ..., "gradients": ..., "temporary": ..., ...}

A block that is freed in the range that took it is temporary. Another is called after its range; see
KEPT. Blocks from before the trace are not seen by address: parameters and optimizer state are added
as the trainer counted them, and of the rest what a step frees.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass

from helpers.engine.errors import UserError
from helpers.trace.traces import Change, Slice, Trace

TEMPORARY, OTHER, EARLIER = "temporary", "other", "freed, from before the trace"
HELD = ("parameters", "optimizer")  # of the trainer's state_bytes: what stays between steps
# range: what it takes and does not free itself
KEPT = {
    "data": "batch",
    "forward": "activations",
    "wait": "messages",
    "backward": "gradients",
    "reduce": "gradients",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class MemoryUse:
    """Bytes by category while a step runs.

    at_s: seconds since the step began, whenever a block was taken or freed.
    bytes: by category, as long as `at_s`.
    """

    step: str
    at_s: list[float]
    bytes: dict[str, list[int]]

    @property
    def total(self) -> list[int]:
        return [sum(values) for values in zip(*self.bytes.values())]

    @property
    def peak(self) -> dict[str, int]:
        """What there was when there was most."""
        total = self.total
        most = total.index(max(total))
        return {category: values[most] for category, values in self.bytes.items()}


def memory_of_step(trace: Trace, step: int = -1) -> MemoryUse:
    """The memory of one traced step, the last one unless told.

    Args:
        step: index among the traced steps.

    Raises:
        UserError: nothing was allocated while the step ran.
    """
    whole = trace.steps[step]
    changes = [change for change in trace.memory if change.device == trace.facts["device"]]
    categories = _categories(changes, trace.ranges(*KEPT))
    states = trace.facts["state_bytes"]
    now = defaultdict(int, {name: states[name] for name in HELD if name in states})
    now[EARLIER] = -_lowest(changes, categories)
    rows: list[tuple[float, dict[str, int]]] = []
    for change, category in zip(changes, categories):
        now[category] += change.bytes
        if whole.start_s <= change.at_s < whole.end_s:
            rows.append((change.at_s - whole.start_s, dict(now)))
    if not rows:
        raise UserError(f"rank {trace.rank} allocated nothing in {whole.name}")
    columns = {name: [row.get(name, 0) for _, row in rows] for name in now}
    taken = {name: values for name, values in columns.items() if any(values)}
    return MemoryUse(whole.name, [at_s for at_s, _ in rows], taken)


def _categories(changes: list[Change], ranges: list[Slice]) -> list[str]:
    """The category of the block of each change."""
    taken: dict[int, int] = {}  # address: the change that took it
    categories = [EARLIER] * len(changes)
    starts = [one.start_s for one in ranges]
    for number, change in enumerate(changes):
        here = _range_at(change.at_s, ranges, starts)
        if change.bytes > 0:
            taken[change.address] = number
            categories[number] = KEPT[here.name] if here else OTHER
            continue
        first = taken.pop(change.address, None)
        if first is None:
            continue
        if here is not None and here is _range_at(changes[first].at_s, ranges, starts):
            categories[first] = TEMPORARY
        categories[number] = categories[first]
    return categories


def _range_at(at_s: float, ranges: list[Slice], starts: list[float]) -> Slice | None:
    """The range that an instant is in."""
    number = bisect_right(starts, at_s) - 1
    return ranges[number] if number >= 0 and ranges[number].end_s > at_s else None


def _lowest(changes: list[Change], categories: list[str]) -> int:
    """How far below 0 the blocks from before the trace fall, which were counted from 0."""
    now = lowest = 0
    for change, category in zip(changes, categories):
        now += change.bytes if category == EARLIER else 0
        lowest = min(lowest, now)
    return lowest
