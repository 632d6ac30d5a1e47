"""Memory by category, from blocks that are written down here, against plain sums."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.trace.memory import EARLIER, HELD, KEPT, OTHER, TEMPORARY, memory_of_step
from helpers.trace.recorder import STEP
from helpers.trace.traces import MARKED, Change, Slice, Trace

MAIN = (1, 1)
STEP_S, STEPS = 10, 2
# seconds of a step; the loss is made outside of all
RANGES = {"data": (0, 1), "forward": (1, 4), "backward": (5, 8), "optimizer": (8, 9)}
STATES = {"parameters": 1000, "gradients": 7, "optimizer": 2000}


class Block(NamedTuple):
    """Taken before the trace, or freed after it, where the time is not in it."""

    taken_s: float
    freed_s: float
    size: int


def blocks_of(drawn: list[tuple[int, int, int]]) -> list[Block]:
    """No two changes at one time."""
    apart_s = 1 / (2 * len(drawn) + 2)
    return [
        Block(second + 2 * i * apart_s, second + length + (2 * i + 1) * apart_s, size)
        for i, (second, length, size) in enumerate(drawn)
    ]


def in_trace(at_s: float) -> bool:
    return 0 <= at_s < STEPS * STEP_S


def addresses(blocks: list[Block]) -> dict[Block, int]:
    """As low as they may be: what is free is taken again."""
    found: dict[Block, int] = {}
    for block in sorted(blocks):
        used = {address for other, address in found.items() if other.freed_s > block.taken_s}
        found[block] = min(set(range(len(blocks))) - used)
    return found


def trace_of(blocks: list[Block]) -> Trace:
    slices = []
    for step in range(STEPS):
        begin = step * STEP_S
        slices.append(Slice(f"{STEP}{step}", MARKED, MAIN, begin, begin + STEP_S))
        slices += [
            Slice(name, MARKED, MAIN, begin + a, begin + b) for name, (a, b) in RANGES.items()
        ]
    changes = [
        Change(at_s, sign * block.size, address, 0, "cpu")
        for block, address in addresses(blocks).items()
        for at_s, sign in ((block.taken_s, 1), (block.freed_s, -1))
        if in_trace(at_s)
    ]
    changes += [change._replace(bytes=10**6, device="cuda") for change in changes]
    changes.sort(key=lambda one: one.at_s)
    facts = {"rank": 0, "steps": list(range(STEPS)), "device": "cpu", "state_bytes": STATES}
    return Trace(facts, "here", slices, changes, {})


def range_at(at_s: float) -> tuple[int, str] | None:
    step, second = divmod(at_s, STEP_S)
    names = [name for name, (begin, end) in RANGES.items() if begin <= second < end]
    return (step, names[0]) if names and in_trace(at_s) else None


def category(block: Block) -> str:
    if not in_trace(block.taken_s):
        return EARLIER
    taken = range_at(block.taken_s)
    if taken is None:
        return OTHER
    return TEMPORARY if taken == range_at(block.freed_s) else KEPT[taken[1]]


def held(blocks: list[Block], name: str, at_s: float) -> int:
    """Of what was there before the trace only what it saw freed is known."""
    here = [one for one in blocks if category(one) == name and one.taken_s <= at_s < one.freed_s]
    seen = [one for one in here if name != EARLIER or in_trace(one.freed_s)]
    return sum(one.size for one in seen) + (STATES[name] if name in HELD else 0)


drawn = st.tuples(st.integers(-1, STEPS * STEP_S - 1), st.integers(0, 12), st.integers(1, 99))


@given(st.lists(drawn, min_size=1, max_size=12), st.sampled_from(range(STEPS)))
def test_every_block_is_in_its_category_while_it_lives(some, step):
    blocks = blocks_of(some)
    begin = step * STEP_S
    times = [at_s for block in blocks for at_s in block[:2] if begin <= at_s < begin + STEP_S]
    if not times:
        with pytest.raises(UserError, match=f"rank 0 allocated nothing in step {step}"):
            memory_of_step(trace_of(blocks), step)
        return
    use = memory_of_step(trace_of(blocks), step)
    assert use.at_s == [at_s - begin for at_s in sorted(times)]
    expected = {
        name: [held(blocks, name, at_s) for at_s in sorted(times)]
        for name in {*KEPT.values(), *HELD, TEMPORARY, OTHER, EARLIER}
    }
    assert use.bytes == {name: values for name, values in expected.items() if any(values)}
    totals = [sum(column) for column in zip(*expected.values())]
    most = totals.index(max(totals))
    assert use.total == totals
    assert use.peak == {name: values[most] for name, values in use.bytes.items()}
