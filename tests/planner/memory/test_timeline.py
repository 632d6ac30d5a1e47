"""The fullest moment of a stretch of time."""

from hypothesis import given
from hypothesis import strategies as st

from helpers.planner.memory.timeline import Held, free, hold, peak

CATEGORIES = st.sampled_from(Held._fields)
SIZES = st.integers(0, 2**40)
EVENTS = st.lists(st.builds(hold, CATEGORIES, SIZES) | st.builds(free, CATEGORIES, SIZES))


def test_by_hand():
    start = Held(activations=10)
    events = [hold("transients", 5), free("activations", 10), hold("gradients", 6)]
    assert peak(start, events) == Held(activations=10, transients=5)
    assert peak(start, [free("activations", 10), hold("gradients", 20)]) == Held(gradients=20)
    assert peak(start, []) == start


@given(st.builds(Held, SIZES, SIZES, SIZES, SIZES), EVENTS)
def test_no_moment_holds_more(start, events):
    moments = [dict(start._asdict())]
    for category, change in events:
        moments.append({**moments[-1], category: moments[-1][category] + change})
    fullest = peak(start, events)
    assert fullest._asdict() in moments
    assert sum(fullest) == max(sum(moment.values()) for moment in moments)
