"""Micro-batches in flight: the formulas against a walk through the schedules' own orders."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.plan import ParallelPlan
from helpers.planner.memory.microbatches_in_flight import Flight, in_flight, put_off
from helpers.planner.model.training_job import make_job
from tests.planner.shapes import gpt

CHANGE = {"F": (1, 0), "B": (-1, 0), "I": (-1, 1), "W": (0, -1)}


def walk(actions):
    """What is in flight after each action."""
    whole = halved = 0
    for action in actions:
        more = CHANGE[action.kind]
        whole, halved = whole + more[0], halved + more[1]
        yield Flight(whole, halved)


def made(schedule, pp, microbatches, virtual):
    plan = {"schedule": schedule, "pp": pp, "microbatches": microbatches}
    if schedule == "interleaved":
        plan["virtual_stages"] = virtual
    return make_job(gpt(64, 36, 4, 500, 64), ParallelPlan(**plan), microbatches, 64)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["naive", "gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"]),
    st.integers(2, 8),
    st.integers(1, 20),
    st.integers(2, 3),
)
def test_the_fullest_moments_are_those_of_the_orders(schedule, pp, microbatches, virtual):
    if schedule == "interleaved" and microbatches < pp:
        return
    job = made(schedule, pp, microbatches, virtual)
    for rank, actions in enumerate(job.plan.schedule_of(microbatches).ranks):
        seen = list(walk(actions))
        most = max(seen, key=lambda flight: (sum(flight), flight.whole))
        assert in_flight(job, rank) == most
        latest = max(seen, key=lambda flight: (flight.halved, flight.whole))
        found = put_off(job, rank)
        assert found.halved == latest.halved
        if latest.halved > 1:  # one alone waits beside most activations, not at the end of a V
            assert found.whole == latest.whole


def test_only_halves_are_put_off():
    for schedule in ("gpipe", "1f1b", "interleaved"):
        assert put_off(made(schedule, 4, 8, 2), 1) == Flight(0)
    assert put_off(made("zero-bubble", 4, 8, 2), 0) == Flight(0)
    assert put_off(made("zero-bubble", 4, 8, 2), 3) == Flight(0, 4)
