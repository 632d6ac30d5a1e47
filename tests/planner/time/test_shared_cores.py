"""The step of a pipeline whose ranks share cores: bounds that hold for any schedule and times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.errors import UserError
from helpers.engine.pipeline.schedules import make_schedule
from helpers.engine.pipeline.simulator import Times, simulate
from helpers.planner.time.shared_cores import simulate_shared

NAMES = ("naive", "gpipe", "1f1b", "interleaved", "zero-bubble")
SECONDS = st.floats(0.1, 3.0)


@st.composite
def cases(draw):
    """A schedule and the times of its stages."""
    ranks = draw(st.integers(1, 4))
    microbatches = ranks * draw(st.integers(1, 3))
    made = make_schedule(draw(st.sampled_from(NAMES)), ranks, microbatches)
    each = st.lists(SECONDS, min_size=made.stages, max_size=made.stages)
    times = Times(draw(each), draw(each), draw(each), link_s=draw(st.floats(0, 0.5)))
    return made, times


@settings(max_examples=60, deadline=None)
@given(cases(), st.floats(0.5, 4.0))
def test_it_lies_between_a_core_for_each_and_one_after_the_other(case, cores):
    made, times = case
    free, shared = simulate(made, times), simulate_shared(made, times, cores)
    work_s = sum(free.busy_s)
    assert shared.makespan_s >= max(free.makespan_s, work_s / cores) * (1 - 1e-6)
    assert shared.makespan_s <= (free.makespan_s + work_s / cores) * (1 + 1e-6)
    assert [[span.action for span in rank] for rank in shared.spans] == list(map(list, made.ranks))


@settings(max_examples=30, deadline=None)
@given(cases())
def test_with_a_core_for_every_rank_it_is_the_simulator(case):
    made, times = case
    free, shared = simulate(made, times), simulate_shared(made, times, cores=made.pp)
    for mine, theirs in zip(shared.spans, free.spans):
        assert [s.end_s for s in mine] == pytest.approx([s.end_s for s in theirs])


def test_by_hand():
    """Two ranks, two micro-batches, F and B of 1 s, one core: 8 s of work and no more."""
    made = make_schedule("gpipe", 2, 2)
    times = Times(forward_s=1.0, backward_s=1.0)
    assert simulate(made, times).makespan_s == 6.0
    shared = simulate_shared(made, times, cores=1)
    assert shared.makespan_s == pytest.approx(8.0)
    second = shared.spans[0][1]  # F1 of rank 0 shares the core with F0 of rank 1
    assert (second.start_s, second.end_s) == pytest.approx((1.0, 3.0))


def test_the_naive_split_asks_for_one_core():
    made = make_schedule("naive", 4, 8)
    assert simulate_shared(made, Times(), 1).makespan_s == pytest.approx(4 * 8 * 3)


def test_no_core_is_refused():
    with pytest.raises(UserError, match="needs cores to run on, not 0"):
        simulate_shared(make_schedule("naive", 1, 1), Times(), 0)
