"""The walk along a rank's order: what is in flight at its backwards, against the schedules' own
bounds and a count of every action."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.pipeline.schedules import make_schedule
from helpers.engine.plan import ParallelPlan
from helpers.planner.memory.turns import in_halves, turns
from helpers.planner.model.training_job import make_job
from tests.planner.shapes import gpt

NAMES = ["naive", "gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v"]
CHANGE = {"F": (1, 0), "B": (-1, 0), "I": (-1, 1), "W": (0, -1)}


def made(schedule, pp, microbatches, virtual=2):
    plan = {"schedule": schedule, "pp": pp, "microbatches": microbatches}
    if schedule == "interleaved":
        plan["virtual_stages"] = virtual
    return make_job(gpt(64, 36, 4, 500, 64), ParallelPlan(**plan), microbatches, 64)


def counted(actions):
    """Micro-batches of a rank that are whole and halved, before each backward."""
    whole = halved = 0
    for action in actions:
        if action.kind != "F":
            yield whole, halved
        more = CHANGE[action.kind]
        whole, halved = whole + more[0], halved + more[1]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(NAMES), st.integers(2, 8), st.integers(1, 20), st.integers(2, 3))
def test_most_in_flight_is_kept(schedule, pp, microbatches, virtual):
    if schedule == "interleaved" and microbatches < pp:
        return
    job = made(schedule, pp, microbatches, virtual)
    for rank, actions in enumerate(job.plan.schedule_of(microbatches).ranks):
        found = turns(job, rank)
        assert in_halves(job, rank) == any(action.kind == "W" for action in actions)
        every = list(counted(actions))
        assert max(sum(turn.whole) for turn in found) == max(whole for whole, _ in every)
        assert max(sum(turn.halved) for turn in found) == max(halved for _, halved in every)
        most = max(whole + halved for whole, halved in every)
        assert max(sum(turn.whole + turn.halved) for turn in found) == most


def test_1f1b_of_three_ranks_by_hand():
    """The middle rank: F0 F1 B0 F2 B1 B2."""
    assert [str(a) for a in make_schedule("1f1b", 3, 3).ranks[1]] == [
        "1F0", "1F1", "1B0", "1F2", "1B1", "1B2",
    ]  # fmt: skip
    found = {(t.kind, t.whole, t.summed): t for t in turns(made("1f1b", 3, 3), 1)}
    first = found["B", (2,), (False,)]
    # two receives ahead, F2 and its own next gradient, and the hidden states that F1 sent
    assert (first.messages, first.takes, first.previous) == (3, True, -1)
    later = found["B", (2,), (True,)]
    assert (later.messages, later.fresh, later.again) == (2, True, False)
    forward = found["F", (1,), (True,)]
    assert (forward.previous, forward.again) == (0, True)


def test_a_v_passes_its_turn_on_to_itself():
    """The last rank of a V has both of its middle stages: what it sends itself waits there."""
    found = turns(made("zero-bubble-v", 2, 1), 1)
    kinds = [(turn.kind, turn.stage, turn.whole, turn.halved) for turn in found]
    assert kinds == [
        ("I", 2, (1, 1), (0, 0)),
        ("W", 2, (1, 0), (0, 1)),
        ("I", 1, (1, 0), (0, 0)),
        ("W", 1, (0, 0), (1, 0)),
    ]
    assert found[2].takes
    assert found[2].messages == 1  # the hidden states that went to the first rank
